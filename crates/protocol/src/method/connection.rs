//! Arguments of the classes `connection` (10), `channel` (20) and `access` (30).

use super::fields::arguments;
use crate::shortstr::ShortStr;
use crate::table::Table;

arguments! {
    /// `connection.start`: the server opens the handshake.
    ConnectionStart<'a> {
        /// Always 0.
        version_major: u8,
        /// Always 9.
        version_minor: u8,
        /// Product, version, capabilities.
        server_properties: Table<'a>,
        /// SASL mechanisms, separated by spaces.
        mechanisms: &'a [u8],
        /// Message locales, separated by spaces.
        locales: &'a [u8],
    }

    /// `connection.start-ok`: the client picks a mechanism and presents itself.
    ConnectionStartOk<'a> {
        /// Product, version, capabilities, connection name.
        client_properties: Table<'a>,
        /// The SASL mechanism.
        mechanism: ShortStr<'a>,
        /// The SASL response.
        response: &'a [u8],
        /// The message locale.
        locale: ShortStr<'a>,
    }

    /// `connection.secure`: a SASL challenge.
    ConnectionSecure<'a> {
        /// The challenge.
        challenge: &'a [u8],
    }

    /// `connection.secure-ok`: the answer to a SASL challenge.
    ConnectionSecureOk<'a> {
        /// The response.
        response: &'a [u8],
    }

    /// `connection.tune`: the server's limits.
    ConnectionTune {
        /// Highest channel number, 0 for no limit.
        channel_max: u16,
        /// Largest frame in bytes, 0 for no limit.
        frame_max: u32,
        /// Heartbeat interval in seconds, 0 for none.
        heartbeat: u16,
    }

    /// `connection.tune-ok`: the client's choice within the server's limits.
    ConnectionTuneOk {
        /// Highest channel number, 0 for no limit.
        channel_max: u16,
        /// Largest frame in bytes, 0 for no limit.
        frame_max: u32,
        /// Heartbeat interval in seconds, 0 for none.
        heartbeat: u16,
    }

    /// `connection.open`: the client chooses a virtual host.
    ConnectionOpen<'a> {
        /// The virtual host's name, taken literally.
        virtual_host: ShortStr<'a>,
    } => skip(ShortStr<'_>, bool)

    /// `connection.close`: either side ends the connection.
    ConnectionClose<'a> {
        /// Why, as a number.
        reply_code: u16,
        /// Why, as text.
        reply_text: ShortStr<'a>,
        /// Class of the method at fault, or 0.
        class_id: u16,
        /// Id of the method at fault, or 0.
        method_id: u16,
    }

    /// `connection.blocked` (RabbitMQ): the server holds publishes back.
    ConnectionBlocked<'a> {
        /// The alarm.
        reason: ShortStr<'a>,
    }

    /// `connection.update-secret` (RabbitMQ): the client renews its credentials.
    ConnectionUpdateSecret<'a> {
        /// The new secret.
        new_secret: &'a [u8],
        /// For the log.
        reason: ShortStr<'a>,
    }

    /// `channel.flow`: asks the peer to stop or to go on sending content.
    ChannelFlow {
        /// Go on (true) or stop (false).
        active: bool,
    }

    /// `channel.flow-ok`: the answer to `channel.flow`.
    ChannelFlowOk {
        /// What now holds.
        active: bool,
    }

    /// `channel.close`: either side ends the channel.
    ChannelClose<'a> {
        /// Why, as a number.
        reply_code: u16,
        /// Why, as text.
        reply_text: ShortStr<'a>,
        /// Class of the method at fault, or 0.
        class_id: u16,
        /// Id of the method at fault, or 0.
        method_id: u16,
    }

    /// `access.request`: obsolete since 0-9; still sent by old clients.
    AccessRequest<'a> {
        /// The realm.
        realm: ShortStr<'a>,
        /// Exclusive access.
        exclusive: bool,
        /// Passive access.
        passive: bool,
        /// Active access.
        active: bool,
        /// Write access.
        write: bool,
        /// Read access.
        read: bool,
    }

    /// `access.request-ok`: the answer to `access.request`.
    AccessRequestOk {
        /// A number that later methods carry and nobody reads.
        ticket: u16,
    }
}

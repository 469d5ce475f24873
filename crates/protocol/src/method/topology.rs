//! Arguments of the classes `exchange` (40) and `queue` (50).

use super::fields::arguments;
use crate::shortstr::ShortStr;
use crate::table::Table;

arguments! {
    /// `exchange.declare`
    ExchangeDeclare<'a> skip(u16) {
        /// The exchange's name.
        exchange: ShortStr<'a>,
        /// The exchange's type (`type` on the wire).
        kind: ShortStr<'a>,
        /// Only ask whether it exists.
        passive: bool,
        /// Survives a restart.
        durable: bool,
        /// Goes with its last binding (RabbitMQ; reserved in 0-9-1).
        auto_delete: bool,
        /// Takes messages from exchanges only (RabbitMQ; reserved in 0-9-1).
        internal: bool,
        /// Send no answer.
        no_wait: bool,
        /// Arguments of the exchange's type.
        arguments: Table<'a>,
    }

    /// `exchange.delete`
    ExchangeDelete<'a> skip(u16) {
        /// The exchange's name.
        exchange: ShortStr<'a>,
        /// Only if nothing is bound to it.
        if_unused: bool,
        /// Send no answer.
        no_wait: bool,
    }

    /// `exchange.bind` (RabbitMQ)
    ExchangeBind<'a> skip(u16) {
        /// The exchange that messages go to.
        destination: ShortStr<'a>,
        /// The exchange that messages come from.
        source: ShortStr<'a>,
        /// The binding key.
        routing_key: ShortStr<'a>,
        /// Send no answer.
        no_wait: bool,
        /// The binding's arguments.
        arguments: Table<'a>,
    }

    /// `exchange.unbind` (RabbitMQ)
    ExchangeUnbind<'a> skip(u16) {
        /// The exchange that messages go to.
        destination: ShortStr<'a>,
        /// The exchange that messages come from.
        source: ShortStr<'a>,
        /// The binding key.
        routing_key: ShortStr<'a>,
        /// Send no answer.
        no_wait: bool,
        /// The binding's arguments.
        arguments: Table<'a>,
    }

    /// `queue.declare`
    QueueDeclare<'a> skip(u16) {
        /// The queue's name; empty for a name of the server's choice.
        queue: ShortStr<'a>,
        /// Only ask whether it exists.
        passive: bool,
        /// Survives a restart.
        durable: bool,
        /// Belongs to this connection.
        exclusive: bool,
        /// Goes with its last consumer.
        auto_delete: bool,
        /// Send no answer.
        no_wait: bool,
        /// The queue's arguments (`x-…`).
        arguments: Table<'a>,
    }

    /// `queue.declare-ok`
    QueueDeclareOk<'a> {
        /// The queue's name.
        queue: ShortStr<'a>,
        /// Messages ready.
        message_count: u32,
        /// Consumers.
        consumer_count: u32,
    }

    /// `queue.bind`
    QueueBind<'a> skip(u16) {
        /// The queue; empty for the last one that this channel declared.
        queue: ShortStr<'a>,
        /// The exchange.
        exchange: ShortStr<'a>,
        /// The binding key.
        routing_key: ShortStr<'a>,
        /// Send no answer.
        no_wait: bool,
        /// The binding's arguments.
        arguments: Table<'a>,
    }

    /// `queue.unbind`
    QueueUnbind<'a> skip(u16) {
        /// The queue; empty for the last one that this channel declared.
        queue: ShortStr<'a>,
        /// The exchange.
        exchange: ShortStr<'a>,
        /// The binding key.
        routing_key: ShortStr<'a>,
        /// The binding's arguments.
        arguments: Table<'a>,
    }

    /// `queue.purge`
    QueuePurge<'a> skip(u16) {
        /// The queue; empty for the last one that this channel declared.
        queue: ShortStr<'a>,
        /// Send no answer.
        no_wait: bool,
    }

    /// `queue.purge-ok`
    QueuePurgeOk {
        /// Messages removed.
        message_count: u32,
    }

    /// `queue.delete`
    QueueDelete<'a> skip(u16) {
        /// The queue; empty for the last one that this channel declared.
        queue: ShortStr<'a>,
        /// Only if it has no consumers.
        if_unused: bool,
        /// Only if it has no messages.
        if_empty: bool,
        /// Send no answer.
        no_wait: bool,
    }

    /// `queue.delete-ok`
    QueueDeleteOk {
        /// Messages removed.
        message_count: u32,
    }
}

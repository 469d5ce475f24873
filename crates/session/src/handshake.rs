//! The handshake: protocol header, login, tuning, and the opening of the virtual host.
//!
//! Each step is called in the phase that waits for it, and moves the connection on to the next phase or refuses it.

use crate::connection::{Identity, Phase, Session, Step};
use crate::{Fault, Host};
use warren_model::Refusal;
use warren_protocol as wire;
use warren_protocol::{
    COMMAND_INVALID, FRAME_MIN_SIZE, Method, NOT_ALLOWED, OwnedTable, OwnedValue, PROTOCOL_HEADER,
    Table,
};

impl Session {
    pub(crate) fn protocol_header(&mut self, buf: &[u8]) -> Step {
        let compared = buf.len().min(PROTOCOL_HEADER.len());
        if buf[..compared] != PROTOCOL_HEADER[..compared] {
            self.core.out.extend_from_slice(&PROTOCOL_HEADER);
            self.phase = Phase::Closed;
            return Step::Consumed(buf.len());
        }
        if compared < PROTOCOL_HEADER.len() {
            return Step::Wait;
        }
        let properties = server_properties(&self.identity).to_bytes();
        let start = wire::ConnectionStart {
            version_major: 0,
            version_minor: 9,
            server_properties: Table::parse(&properties).unwrap_or(Table::EMPTY),
            mechanisms: if self.certified.is_some() {
                b"PLAIN AMQPLAIN EXTERNAL"
            } else {
                b"PLAIN AMQPLAIN"
            },
            locales: b"en_US",
        };
        Method::ConnectionStart(start).write(0, &mut self.core.out);
        self.phase = Phase::StartOk;
        Step::Consumed(PROTOCOL_HEADER.len())
    }

    pub(crate) fn start_ok(
        &mut self,
        m: &wire::ConnectionStartOk<'_>,
        host: &mut impl Host,
    ) -> Result<(), Fault> {
        if let Some(wire::Value::Table(capabilities)) = m.client_properties.get("capabilities") {
            let has = |name: &str| matches!(capabilities.get(name), Some(wire::Value::Bool(true)));
            self.authentication_failure_close = has("authentication_failure_close");
            self.connection_blocked = has("connection.blocked");
            self.core.consumer_cancel_notify = has("consumer_cancel_notify");
        }
        for key in ["connection_name", "product"] {
            if let Some(wire::Value::LongStr(name)) = m.client_properties.get(key) {
                self.client = String::from_utf8_lossy(&name[..name.len().min(256)]).into_owned();
                break;
            }
        }
        self.client_properties = m.client_properties.as_bytes().to_vec();
        self.mechanism = m.mechanism.to_string();
        let credentials = match (m.mechanism.as_bytes(), &self.certified) {
            (b"PLAIN", _) => wire::parse_plain(m.response),
            (b"AMQPLAIN", _) => wire::parse_amqplain(m.response),
            (b"EXTERNAL", Some(user)) => {
                let verdict = host.admit(user).map(|()| user.clone());
                self.logged_in(verdict, host);
                return Ok(());
            }
            _ => {
                let text = format!(
                    "COMMAND_INVALID - unknown authentication mechanism '{}'",
                    m.mechanism
                );
                return Err(Fault::Connection(COMMAND_INVALID, text));
            }
        };
        let Some((user, password)) = credentials else {
            let why = format!("malformed response for mechanism {}", m.mechanism);
            self.logged_in(Err(why), host);
            return Ok(());
        };
        // Told to nobody before the verdict, but operators may look at who is waiting for one.
        self.core.user = String::from_utf8_lossy(user).into_owned();
        self.phase = Phase::Login;
        if let Some(verdict) = host.authenticate(user, password) {
            self.login_checked(verdict, host);
        }
        Ok(())
    }

    /// The host's verdict on a login that took time; the error is for the log. Then go on with [`Session::input`].
    pub fn login_checked(&mut self, verdict: Result<(), String>, host: &mut impl Host) {
        if self.phase == Phase::Login {
            let user = std::mem::take(&mut self.core.user);
            self.logged_in(verdict.map(|()| user), host);
        }
    }

    /// Goes on to tuning, or refuses the login as far as the client understands that.
    fn logged_in(&mut self, verdict: Result<String, String>, host: &mut impl Host) {
        match verdict {
            Ok(user) => {
                self.core.user = user;
                let tune = wire::ConnectionTune {
                    channel_max: self.limits.channel_max,
                    frame_max: self.limits.frame_max,
                    heartbeat: self.limits.heartbeat_s,
                };
                Method::ConnectionTune(tune).write(0, &mut self.core.out);
                self.phase = Phase::TuneOk;
            }
            Err(why) => {
                self.refused_login = Some(why);
                if self.authentication_failure_close {
                    let text = format!(
                        "ACCESS_REFUSED - Login was refused using authentication mechanism {}. For details see the broker logfile.",
                        self.mechanism
                    );
                    self.close(wire::ACCESS_REFUSED, &text, (0, 0), host);
                } else {
                    self.phase = Phase::Closed;
                }
            }
        }
    }

    pub(crate) fn tune_ok(&mut self, m: &wire::ConnectionTuneOk) -> Result<(), Fault> {
        check_tuned(
            "channel_max",
            u32::from(m.channel_max),
            0,
            u32::from(self.limits.channel_max),
        )?;
        check_tuned(
            "frame_max",
            m.frame_max,
            FRAME_MIN_SIZE,
            self.limits.frame_max,
        )?;
        self.channel_max = m.channel_max;
        self.core.frame_max = m.frame_max;
        self.heartbeat_s = m.heartbeat;
        self.phase = Phase::Open;
        Ok(())
    }

    pub(crate) fn connection_open(
        &mut self,
        m: &wire::ConnectionOpen<'_>,
        host: &mut impl Host,
    ) -> Result<(), Fault> {
        let vhost = m.virtual_host.as_str()?;
        host.open_vhost(&self.core.user, vhost)
            .map_err(|r| Refusal::new(NOT_ALLOWED, r.text))?;
        self.core.vhost = vhost.to_owned();
        Method::ConnectionOpenOk.write(0, &mut self.core.out);
        self.phase = Phase::Running;
        Ok(())
    }
}

/// Checks one tuned value against what was offered: 0 means no limit on both sides.
fn check_tuned(name: &str, value: u32, least: u32, offered: u32) -> Result<(), Fault> {
    let text = if value != 0 && value < least {
        format!("negotiated {name} = {value} is lower than the minimum allowed value ({least})")
    } else if offered != 0 && (value == 0 || value > offered) {
        let value = if value == 0 {
            "no limit (0)".to_owned()
        } else {
            value.to_string()
        };
        format!("negotiated {name} = {value} is higher than the maximum allowed value ({offered})")
    } else {
        return Ok(());
    };
    Err(Refusal::new(NOT_ALLOWED, text).into())
}

fn server_properties(identity: &Identity) -> OwnedTable {
    let mut capabilities = OwnedTable::default();
    for name in [
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "authentication_failure_close",
        "per_consumer_qos",
    ] {
        capabilities.put(name, OwnedValue::Bool(true));
    }
    let mut properties = OwnedTable::default();
    properties.put("capabilities", OwnedValue::Table(capabilities));
    for (key, value) in [
        ("cluster_name", identity.cluster_name.as_str()),
        ("copyright", "The Warren authors"),
        (
            "information",
            "Warren, a clustered broker for RabbitMQ clients",
        ),
        ("node", &identity.node_name),
        ("platform", "Warren"),
        // Clients choose their ways by these two; Warren's ways are RabbitMQ's.
        ("product", "RabbitMQ"),
        ("version", &identity.compatible_version),
        ("warren_version", &identity.version),
    ] {
        properties.put(key, OwnedValue::LongStr(value.as_bytes().to_vec()));
    }
    properties
}

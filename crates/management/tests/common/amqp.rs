//! A session of a node in this process, spoken to in AMQP.

use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use warren_node::{Node, Origin};
use warren_protocol::{
    ConnectionOpen, ConnectionStartOk, ConnectionTuneOk, FrameKind, Method, PROTOCOL_HEADER,
    ShortStr, Table, parse_frame,
};

const DEADLINE: Duration = Duration::from_secs(20);

pub struct Amqp {
    stream: DuplexStream,
    incoming: Vec<u8>,
}

impl Amqp {
    /// Logs in as guest, to the virtual host `/`, and opens channel 1.
    pub async fn open(node: &Arc<Node>) -> Self {
        Self::open_from(node, "127.0.0.1:5").await
    }

    /// The same from this address, to the node's own.
    pub async fn open_from(node: &Arc<Node>, peer: &str) -> Self {
        let (stream, far) = tokio::io::duplex(1 << 16);
        let origin = Origin {
            peer: peer.parse().unwrap(),
            local: Some("127.0.0.1:5672".parse().unwrap()),
            tls: None,
        };
        tokio::spawn(node.clone().serve_from(far, origin));
        let mut amqp = Self {
            stream,
            incoming: Vec::new(),
        };
        amqp.stream.write_all(&PROTOCOL_HEADER).await.unwrap();
        amqp.expect("connection.start").await;
        let start_ok = ConnectionStartOk {
            client_properties: Table::parse(b"\x0fconnection_nameS\0\0\0\x01n").unwrap(),
            mechanism: "PLAIN".into(),
            response: b"\0guest\0guest",
            locale: "en_US".into(),
        };
        amqp.send(0, start_ok).await;
        amqp.expect("connection.tune").await;
        let tune_ok = ConnectionTuneOk {
            channel_max: 1,
            frame_max: 4096,
            heartbeat: 0,
        };
        amqp.send(0, tune_ok).await;
        let open = ConnectionOpen {
            virtual_host: "/".into(),
        };
        amqp.send(0, open).await;
        amqp.expect("connection.open-ok").await;
        amqp.call(Method::ChannelOpen, "channel.open-ok").await;
        amqp
    }

    /// Sends a method on the channel; the next one that comes must be its reply.
    pub async fn call<'a>(&mut self, method: impl Into<Method<'a>>, reply: &str) {
        self.send(1, method).await;
        self.expect(reply).await;
    }

    pub async fn send<'a>(&mut self, channel: u16, method: impl Into<Method<'a>>) {
        let mut bytes = Vec::new();
        method.into().write(channel, &mut bytes);
        self.stream.write_all(&bytes).await.unwrap();
    }

    /// Sends what is written already.
    pub async fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Waits for this method on any channel, and leaves out all frames before it.
    pub async fn wait_for(&mut self, name: &str) -> String {
        loop {
            if let Some(frame) = parse_frame(&self.incoming, 0).unwrap() {
                let method = (frame.kind == FrameKind::Method)
                    .then(|| Method::decode(frame.payload).unwrap());
                let found = method
                    .filter(|m| m.name() == name)
                    .map(|m| format!("{m:?}"));
                let length = frame.wire_len();
                self.incoming.drain(..length);
                match found {
                    Some(found) => return found,
                    None => continue,
                }
            }
            let read = self.stream.read_buf(&mut self.incoming);
            let read = tokio::time::timeout(DEADLINE, read).await;
            assert_ne!(read.expect(name).unwrap(), 0, "closed before {name}");
        }
    }

    async fn expect(&mut self, name: &str) {
        loop {
            if let Some(frame) = parse_frame(&self.incoming, 0).unwrap() {
                assert_eq!(frame.kind, FrameKind::Method);
                let method = Method::decode(frame.payload).unwrap();
                assert_eq!(method.name(), name, "{method:?}");
                let length = frame.wire_len();
                self.incoming.drain(..length);
                return;
            }
            let read = self.stream.read_buf(&mut self.incoming);
            let read = tokio::time::timeout(DEADLINE, read).await;
            assert_ne!(read.expect(name).unwrap(), 0, "closed before {name}");
        }
    }
}

pub fn short(text: &str) -> ShortStr<'_> {
    ShortStr::new(text.as_bytes()).unwrap()
}

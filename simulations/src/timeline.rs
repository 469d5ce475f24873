//! What happened where and when: the log of the simulated processes and what the simulator itself does, in one list.
//!
//! Flow: a [`Timeline`] is the tracing subscriber of a simulation's thread. turmoil enters a span that names the host whenever it runs one, which says whose
//! event it is; the simulator adds its own with [`Timeline::note`].
//! Cost: spans are interned by the host's name; an event costs its formatting. What nobody asked to see is not formatted.

use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Write as _};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Events kept of each source, to show when a run fails.
const KEPT: usize = 60;

/// What happens all the time and would push what matters out of the last events.
const EVERYDAY: [&str; 2] = ["connection opened", "connection closed"];

/// How much is taken down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// The last events of each host, for a report.
    Last,
    /// All events.
    All,
    /// All events and every packet, with a hash of its bytes: what a repeated run must repeat.
    Packets,
}

/// The list.
#[derive(Clone, Debug)]
pub struct Timeline {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    detail: Detail,
    /// Simulated time as of the latest step, in milliseconds: what turmoil says outside of a host's turn depends on the real clock.
    clock_ms: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Names of hosts; a span's id is the place of its host's name, counted from 1.
    names: Vec<String>,
    entered: Vec<u64>,
    all: Vec<String>,
    last: BTreeMap<String, VecDeque<(Duration, String)>>,
    packets: u64,
}

impl Timeline {
    /// An empty list.
    #[must_use]
    pub fn new(detail: Detail) -> Self {
        Self {
            inner: Arc::new(Inner {
                detail,
                clock_ms: AtomicU64::new(0),
                state: Mutex::default(),
            }),
        }
    }

    /// The simulation has come this far.
    pub(crate) fn stepped(&self, to: Duration) {
        let ms = u64::try_from(to.as_millis()).unwrap_or(u64::MAX);
        self.inner.clock_ms.store(ms, Ordering::Relaxed);
    }

    /// Adds what the simulator does.
    pub(crate) fn note(&self, at: Duration, source: &str, text: impl fmt::Display) {
        self.inner.add(at, source, text.to_string());
    }

    /// Whether everything is wanted.
    pub(crate) fn is_detailed(&self) -> bool {
        self.inner.detail != Detail::Last
    }

    /// All events in order, where all were asked for.
    #[must_use]
    pub fn all(&self) -> Vec<String> {
        self.inner.state.lock().all.clone()
    }

    /// The last events of each source, in the order of time.
    #[must_use]
    pub fn last(&self) -> Vec<String> {
        let state = self.inner.state.lock();
        let mut events: Vec<(Duration, &str, &str)> = state
            .last
            .iter()
            .flat_map(|(source, list)| {
                list.iter()
                    .map(|(at, text)| (*at, source.as_str(), text.as_str()))
            })
            .collect();
        events.sort_by_key(|(at, _, _)| *at);
        events
            .into_iter()
            .map(|(at, source, text)| line(at, source, text))
            .collect()
    }

    /// Packets seen, where they were asked for.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.inner.state.lock().packets
    }
}

fn line(at: Duration, source: &str, text: &str) -> String {
    format!("{:9.3} {source:<6} {text}", at.as_secs_f64())
}

impl Inner {
    fn add(&self, at: Duration, source: &str, text: String) {
        let mut state = self.state.lock();
        if self.detail != Detail::Last {
            state.all.push(line(at, source, &text));
        }
        let list = state.last.entry(source.to_owned()).or_default();
        if list.len() == KEPT {
            list.pop_front();
        }
        list.push_back((at, text));
    }

    fn wants_packets(&self) -> bool {
        self.detail == Detail::Packets
    }
}

impl Subscriber for Timeline {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        if target.starts_with("turmoil") {
            return (metadata.is_span() && metadata.name() == "node")
                || (metadata.is_event() && self.inner.wants_packets());
        }
        if target.starts_with("openraft") && self.inner.detail == Detail::Last {
            return false;
        }
        let most = match self.inner.detail {
            Detail::Last => Level::INFO,
            Detail::All | Detail::Packets => Level::DEBUG,
        };
        // Spans of the product are not shown, and cost without being of use. openraft has much to say, little of which helps.
        let most = if target.starts_with("openraft") {
            Level::WARN
        } else {
            most
        };
        metadata.is_event()
            && (target.starts_with("warren") || target.starts_with("openraft"))
            && *metadata.level() <= most
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut state = self.inner.state.lock();
        let mut host = Host {
            names: &mut state.names,
            id: 1,
        };
        span.record(&mut host);
        Id::from_u64(host.id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let at = Duration::from_millis(self.inner.clock_ms.load(Ordering::Relaxed));
        let mut text = Text::default();
        if event.metadata().target() == "turmoil" {
            event.record(&mut text);
            if text.0.starts_with("step ") {
                return;
            }
            // The bytes matter only in that they are the same.
            let mut hasher = std::hash::DefaultHasher::new();
            text.0.hash(&mut hasher);
            let short: String = text.0.chars().take(80).collect();
            let text = format!("packet {:016x} {} {short}", hasher.finish(), text.0.len());
            self.inner.state.lock().packets += 1;
            return self.inner.add(at, "net", text);
        }
        if *event.metadata().level() <= Level::WARN {
            text.0.push_str(event.metadata().level().as_str());
            text.0.push(' ');
        }
        event.record(&mut text);
        // Each heartbeat that does not reach a node that is down is a warning of its own, several times a second and shard: people see nothing else then. A
        // repeated run is held to them, too.
        if self.inner.detail == Detail::All
            && event.metadata().target().starts_with("openraft")
            && text.0.contains("HeartbeatWorker")
        {
            return;
        }
        if self.inner.detail == Detail::Last
            && EVERYDAY.iter().any(|everyday| text.0.starts_with(everyday))
        {
            return;
        }
        let source = {
            let state = self.inner.state.lock();
            state
                .entered
                .last()
                .and_then(|id| state.names.get(usize::try_from(*id).ok()? - 1).cloned())
        };
        self.inner.add(at, source.as_deref().unwrap_or("-"), text.0);
    }

    fn enter(&self, span: &Id) {
        self.inner.state.lock().entered.push(span.into_u64());
    }

    fn exit(&self, span: &Id) {
        let mut state = self.inner.state.lock();
        if state.entered.last() == Some(&span.into_u64()) {
            state.entered.pop();
        }
    }
}

/// Finds the host that a span names: at every step for every host, so without writing its name down anew.
struct Host<'a> {
    names: &'a mut Vec<String>,
    id: u64,
}

impl Visit for Host<'_> {
    fn record_str(&mut self, _: &Field, value: &str) {
        let place = self.names.iter().position(|known| known == value);
        let place = place.unwrap_or_else(|| {
            self.names.push(value.to_owned());
            self.names.len() - 1
        });
        self.id = place as u64 + 1;
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// An event's message and fields as text.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format_args!("{value:?}"));
    }
}

impl Text {
    fn put(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" | "name" => write!(self.0, "{value}"),
            name => write!(self.0, " {name}={value}"),
        };
    }
}

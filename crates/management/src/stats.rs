//! RabbitMQ's form of counters with rates: `"publish": 3, "publish_details": {"rate": 0.2}`.

use serde_json::{Map, Value, json};
use warren_node::{MessageStats, Rated};

/// What is delivered or got: the sum that RabbitMQ calls `deliver_get`.
const DELIVERED: [&str; 4] = ["deliver", "deliver_no_ack", "get", "get_no_ack"];

/// `message_stats`: only what has ever happened, as in RabbitMQ.
pub(crate) fn described(stats: &MessageStats) -> Value {
    let mut fields = Map::new();
    for (name, rated) in stats {
        put(&mut fields, name, *rated);
    }
    if let Some(sum) = delivered(stats) {
        put(&mut fields, "deliver_get", sum);
    }
    Value::Object(fields)
}

fn delivered(stats: &MessageStats) -> Option<Rated> {
    let parts = DELIVERED.iter().filter_map(|name| stats.get(*name));
    parts.copied().reduce(|a, b| Rated {
        total: a.total + b.total,
        rate: a.rate + b.rate,
    })
}

/// A counter and its rate.
pub(crate) fn put(fields: &mut Map<String, Value>, name: &str, rated: Rated) {
    fields.insert(name.to_owned(), json!(rated.total));
    fields.insert(format!("{name}_details"), json!({"rate": rated.rate}));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_delivered_and_got_is_summed_up() {
        let rated = |total, rate| Rated { total, rate };
        let stats = MessageStats::from([
            ("ack".to_owned(), rated(1, 0.0)),
            ("deliver".to_owned(), rated(2, 0.5)),
            ("get_no_ack".to_owned(), rated(3, 1.0)),
        ]);
        let expected = json!({
            "ack": 1, "ack_details": {"rate": 0.0},
            "deliver": 2, "deliver_details": {"rate": 0.5},
            "get_no_ack": 3, "get_no_ack_details": {"rate": 1.0},
            "deliver_get": 5, "deliver_get_details": {"rate": 1.5},
        });
        assert_eq!(described(&stats), expected);
        assert_eq!(described(&MessageStats::new()), json!({}));
    }
}

//! Prometheus' text form: families of series, each with its type, help and samples.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::fmt::Write;
use warren_node::Latency;

const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What is written, family by family.
#[derive(Default)]
pub(crate) struct Exposition(String);

impl Exposition {
    /// Begins a family of series.
    pub(crate) fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "# TYPE {name} {kind}\n# HELP {name} {help}\n");
    }

    pub(crate) fn sample(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        value: impl std::fmt::Display,
    ) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            let opening = if i == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{opening}{label}=\"{}\"", escaped(text));
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }

    pub(crate) fn counter(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.family(name, "counter", help);
        self.sample(name, &[], value);
    }

    /// A series of a family of histograms.
    pub(crate) fn histogram(&mut self, name: &str, label: (&str, &str), latency: &Latency) {
        let bucket = format!("{name}_bucket");
        for (bound, count) in &latency.buckets {
            self.sample(&bucket, &[label, ("le", &bound.to_string())], count);
        }
        self.sample(&bucket, &[label, ("le", "+Inf")], latency.count);
        self.sample(&format!("{name}_sum"), &[label], latency.sum);
        self.sample(&format!("{name}_count"), &[label], latency.count);
    }
}

impl IntoResponse for Exposition {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, CONTENT_TYPE)], self.0).into_response()
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_written_as_prometheus_reads_them() {
        let mut out = Exposition::default();
        out.gauge("a", "What it is", 1.5);
        out.family("b", "counter", "Other");
        out.sample("b", &[("x", "a\"b\\c\nd"), ("y", "")], 7);
        let latency = Latency {
            buckets: vec![(0.0005, 1), (5.0, 2)],
            count: 3,
            sum: 7.25,
        };
        let mut times = Exposition::default();
        times.histogram("t", ("group", "g"), &latency);
        assert_eq!(
            times.0,
            "t_bucket{group=\"g\",le=\"0.0005\"} 1\nt_bucket{group=\"g\",le=\"5\"} 2\nt_bucket{group=\"g\",le=\"+Inf\"} 3\nt_sum{group=\"g\"} 7.25\nt_count{group=\"g\"} 3\n"
        );
        assert_eq!(
            out.0,
            "# TYPE a gauge\n# HELP a What it is\na 1.5\n# TYPE b counter\n# HELP b Other\nb{x=\"a\\\"b\\\\c\\nd\",y=\"\"} 7\n"
        );
    }
}

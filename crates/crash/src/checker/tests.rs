//! Planted histories: each class of wrong is found, and what looks like it and is right is not.

use super::testing::{Story, ms};
use super::*;
use crate::history::{Closed, End, Fate, FaultKind, Incident, Stranger, StrangerKind};

/// The violations by class, without those that there are none of.
fn found(story: &Story) -> Vec<(Class, u64)> {
    let findings = story.findings();
    let of = |class| (class, findings.of(class).violations);
    Class::ALL
        .map(of)
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .collect()
}

fn excused(story: &Story, class: Class) -> u64 {
    story.findings().of(class).excused
}

#[test]
fn a_good_round_has_no_findings() {
    let story = Story::new()
        .confirmed(10)
        .confirmed(20)
        .publish(30, Outcome::Refused(ms(31)))
        .acked(0, 0, 12)
        .acked(1, 1, 22);
    assert_eq!(found(&story), []);
    let counts = story.verdict().counts;
    assert_eq!(
        (
            counts.published,
            counts.confirmed,
            counts.refused,
            counts.delivered
        ),
        (3, 2, 1, 2)
    );
}

#[test]
fn a_confirmed_message_that_never_comes_is_lost() {
    let story = Story::new().confirmed(10).confirmed(20).acked(0, 1, 22);
    assert_eq!(found(&story), [(Class::Lost, 1)]);
    let findings = story.findings();
    assert!(
        findings.of(Class::Lost).examples[0]
            .1
            .contains("message 0 of publisher 0 to q1, confirmed at 0.011 s: never delivered")
    );
}

#[test]
fn a_confirmed_message_that_comes_only_to_a_client_that_dies_is_lost() {
    let story = Story::new()
        .confirmed(10)
        .deliver(0, 0, 12, false, Fate::Held)
        .fault(FaultKind::Kill, 0, 15, 1000)
        .reconnect(0, 20, 1000);
    assert_eq!(found(&story), [(Class::Lost, 1)]);
    let again = story.deliver(1, 0, 2000, true, Fate::Acked(ms(2001)));
    assert_eq!(found(&again), []);
}

#[test]
fn a_returned_message_must_come_again() {
    let story = Story::new()
        .confirmed(10)
        .deliver(0, 0, 12, false, Fate::Requeued(ms(13)));
    assert_eq!(found(&story), [(Class::Lost, 1)]);
    let again = story.deliver(1, 0, 14, true, Fate::Acked(ms(15)));
    assert_eq!(found(&again), []);
}

#[test]
fn unanswered_messages_of_a_broken_connection_may_come_or_not() {
    let story = Story::new()
        .fault(FaultKind::Kill, 0, 5, 90)
        .publish(10, Outcome::Unknown)
        .publish(11, Outcome::Unknown)
        .publisher_reconnects(20, 100)
        .acked(1, 1, 50);
    assert_eq!(found(&story), []);
}

#[test]
fn acknowledged_and_seen_again_is_a_duplicate_with_or_without_the_flag() {
    for flag in [false, true] {
        let story = Story::new().confirmed(10).acked(0, 0, 12).deliver(
            1,
            0,
            5000,
            flag,
            Fate::Acked(ms(5001)),
        );
        assert_eq!(found(&story), [(Class::Duplicated, 1)]);
    }
}

#[test]
fn held_and_seen_again_is_a_duplicate_although_another_node_has_died() {
    let story = Story::new()
        .confirmed(10)
        .deliver(0, 0, 12, false, Fate::Acked(ms(4000)))
        .fault(FaultKind::Kill, 2, 100, 2000)
        .deliver(1, 0, 300, true, Fate::Acked(ms(301)));
    assert_eq!(found(&story), [(Class::Duplicated, 1)]);
    assert!(
        story.findings().of(Class::Duplicated).examples[0]
            .1
            .ends_with("while it was held")
    );
}

#[test]
fn a_second_copy_is_seen_behind_a_connection_that_ended() {
    let story = Story::new()
        .confirmed(10)
        .acked(0, 0, 12)
        .deliver(1, 0, 13, true, Fate::Held)
        .reconnect(1, 14, 20)
        .deliver(1, 0, 4000, true, Fate::Acked(ms(4001)));
    assert_eq!(story.findings().of(Class::Duplicated).violations, 2);
}

#[test]
fn duplicates_at_a_node_under_fault_are_excused() {
    let story = Story::new()
        .confirmed(10)
        .acked(0, 0, 12)
        .fault(FaultKind::Stop, 0, 11, 5000)
        .deliver(1, 0, 3000, true, Fate::Acked(ms(3001)));
    assert_eq!(found(&story), []);
    assert_eq!(excused(&story, Class::Duplicated), 1);
}

#[test]
fn a_redelivery_needs_the_flag() {
    let returned = Story::new()
        .confirmed(10)
        .deliver(0, 0, 12, false, Fate::Requeued(ms(13)))
        .deliver(1, 0, 14, false, Fate::Acked(ms(15)));
    assert_eq!(found(&returned), [(Class::Duplicated, 1)]);

    let killed = Story::new()
        .confirmed(10)
        .deliver(0, 0, 12, false, Fate::Held)
        .fault(FaultKind::Kill, 0, 15, 1000)
        .reconnect(0, 20, 1000)
        .deliver(1, 0, 2000, false, Fate::Acked(ms(2001)));
    assert_eq!(found(&killed), []);
    assert_eq!(excused(&killed, Class::Duplicated), 1);
}

#[test]
fn a_message_of_an_earlier_round_is_a_duplicate() {
    let mut story = Story::new();
    story.0.consumers[0].strangers.push(Stranger {
        at: ms(50),
        queue: 0,
        what: StrangerKind::Earlier {
            round: 1,
            redelivered: true,
        },
    });
    assert_eq!(found(&story), [(Class::Duplicated, 1)]);
}

#[test]
fn messages_of_one_connection_must_come_in_order() {
    let story = Story::new()
        .confirmed(10)
        .confirmed(11)
        .confirmed(12)
        .acked(0, 0, 20)
        .acked(0, 2, 21)
        .acked(0, 1, 22);
    assert_eq!(found(&story), [(Class::Reordered, 1)]);
}

#[test]
fn orders_of_two_consumers_are_not_compared_and_redeliveries_come_late() {
    let two = Story::new()
        .confirmed(10)
        .confirmed(11)
        .acked(1, 1, 20)
        .acked(0, 0, 21);
    assert_eq!(found(&two), []);
    let late = Story::new()
        .confirmed(10)
        .confirmed(11)
        .deliver(0, 0, 20, false, Fate::Requeued(ms(21)))
        .acked(0, 1, 22)
        .deliver(0, 0, 23, true, Fate::Acked(ms(24)));
    assert_eq!(found(&late), []);
}

#[test]
fn a_reorder_at_a_node_under_fault_is_excused() {
    let story = Story::new()
        .confirmed(10)
        .confirmed(11)
        .fault(FaultKind::Partition, 0, 12, 100)
        .acked(0, 1, 20)
        .acked(0, 0, 22);
    assert_eq!(found(&story), []);
    assert_eq!(excused(&story, Class::Reordered), 1);
}

#[test]
fn two_connections_have_an_order_only_by_confirms() {
    let story = |first| {
        Story::new()
            .fault(FaultKind::Kill, 0, 15, 30)
            .publish(10, first)
            .publisher_reconnects(20, 30)
            .confirmed(40)
            .acked(1, 1, 50)
            .acked(1, 0, 51)
    };
    assert_eq!(found(&story(Outcome::Unknown)), []);
    assert_eq!(
        found(&story(Outcome::Confirmed(ms(11)))),
        [(Class::Reordered, 1)]
    );
}

#[test]
fn a_message_that_nobody_published_is_a_phantom() {
    let story = Story::new().confirmed(10).acked(0, 0, 12).acked(0, 1, 13);
    assert_eq!(found(&story), [(Class::Phantom, 1)]);

    let mut stranger = Story::new().confirmed(10).acked(0, 0, 12).acked(0, 0, 13);
    stranger.0.consumers[0].deliveries[1].publisher = 9;
    assert_eq!(found(&stranger), [(Class::Phantom, 1)]);
}

#[test]
fn a_message_from_another_queue_is_a_phantom_and_does_not_stand_for_the_real_one() {
    let mut story = Story::new().confirmed(10).acked(0, 0, 12);
    story.0.consumers[0].deliveries[0].queue = 1;
    assert_eq!(found(&story), [(Class::Lost, 1), (Class::Phantom, 1)]);
}

#[test]
fn a_spoilt_content_is_a_phantom() {
    let mut story = Story::new();
    story.0.consumers[1].strangers.push(Stranger {
        at: ms(50),
        queue: 1,
        what: StrangerKind::Spoilt("a body of 40 bytes whose checksum does not match".to_owned()),
    });
    assert_eq!(found(&story), [(Class::Phantom, 1)]);
}

#[test]
fn what_was_refused_must_not_come() {
    let story = Story::new()
        .publish(10, Outcome::Refused(ms(20)))
        .fault(FaultKind::Partition, 0, 5, 100)
        .acked(0, 0, 50);
    assert_eq!(found(&story), [(Class::RefusedButApplied, 1)]);
}

#[test]
fn what_has_a_queue_must_not_be_returned() {
    let story = Story::new().publish(10, Outcome::Returned(ms(20)));
    assert_eq!(found(&story), [(Class::Returned, 1)]);
}

#[test]
fn a_connection_ends_only_with_its_node() {
    let story = Story::new().reconnect(0, 5000, 5100);
    assert_eq!(found(&story), [(Class::Dropped, 1)]);
    let killed = story.fault(FaultKind::Kill, 0, 4900, 5050);
    assert_eq!(found(&killed), []);
    assert_eq!(excused(&killed, Class::Dropped), 1);
}

#[test]
fn nonsense_on_the_wire_counts_always() {
    let mut story = Story::new();
    story.0.publishers[0].links[0].closed = Some(Closed {
        at: ms(200_000),
        end: End::Broken("confirmed twice".to_owned()),
    });
    assert_eq!(found(&story), [(Class::Broken, 1)]);
}

#[test]
fn a_client_must_get_back_in_time_once_its_node_works() {
    let story = |again| {
        Story::new()
            .fault(FaultKind::Kill, 0, 1000, 40_000)
            .reconnect(0, 1000, again)
    };
    assert_eq!(found(&story(70_000)), []);
    assert_eq!(found(&story(80_000)), [(Class::Hung, 1)]);
}

#[test]
fn a_publish_must_be_answered_in_time_if_its_connection_lives() {
    let never = Story::new().publish(10, Outcome::Unknown);
    assert_eq!(found(&never), [(Class::Hung, 1)]);
    let late = |at| {
        Story::new()
            .publish(10, Outcome::Confirmed(ms(at)))
            .acked(0, 0, at)
    };
    assert_eq!(found(&late(29_000)), []);
    assert_eq!(found(&late(31_000)), [(Class::Hung, 1)]);
    // Its own node stood still meanwhile.
    let stopped = late(31_000).fault(FaultKind::Stop, 0, 10, 3_000);
    assert_eq!(found(&stopped), []);
}

#[test]
fn stalls_are_of_the_slowest_queue_at_the_other_nodes() {
    let mut story = Story::new()
        .confirmed(990)
        .publish(1010, Outcome::Confirmed(ms(1480)))
        .publish(1300, Outcome::Refused(ms(1301)))
        .publish(1500, Outcome::Confirmed(ms(1510)))
        .publish(1020, Outcome::Confirmed(ms(1030)))
        .fault(FaultKind::Kill, 1, 1000, 3000)
        .fault(FaultKind::Stop, 0, 9000, 9500);
    story.0.publishers[0].messages[4].queue = 1;
    story.0.publishers[0]
        .messages
        .sort_by_key(|message| message.sent);
    let verdict = story.verdict();
    let expected = Stall {
        kind: FaultKind::Kill,
        overlapping: false,
        flow: Some(ms(480)),
        slowest: Some(ms(470)),
    };
    assert_eq!(verdict.stalls[0], expected);
    // The publisher's own node: nobody is left to measure it.
    assert_eq!(
        (verdict.stalls[1].flow, verdict.stalls[1].slowest),
        (None, None)
    );
}

#[test]
fn a_stall_beyond_the_limit_is_a_hang() {
    let mut story = Story::new().fault(FaultKind::Kill, 1, 1000, 3000);
    for at in (1001..60_000).step_by(100) {
        story = story.publish(at, Outcome::Refused(ms(at + 1)));
    }
    assert_eq!(found(&story), [(Class::Hung, 1)]);
    assert_eq!(story.verdict().stalls[0].flow, None);
}

#[test]
fn a_hasty_fault_marks_itself_and_the_one_before() {
    let mut story = Story::new()
        .fault(FaultKind::Kill, 1, 1000, 3000)
        .fault(FaultKind::Stop, 2, 2000, 3000)
        .fault(FaultKind::Kill, 1, 8000, 9000);
    story.0.faults[1].hasty = true;
    let overlapping: Vec<bool> = story
        .verdict()
        .stalls
        .iter()
        .map(|stall| stall.overlapping)
        .collect();
    assert_eq!(overlapping, [true, true, false]);
}

#[test]
fn a_node_that_ends_by_itself_is_a_finding() {
    let mut story = Story::new();
    story.0.incidents.push(Incident {
        at: ms(7),
        kind: IncidentKind::Died,
        text: "node2 ended".to_owned(),
    });
    assert_eq!(found(&story), [(Class::Died, 1)]);
}

#[test]
fn percentiles_are_values_that_were_measured() {
    let mut values: Vec<Micros> = (1..=50).rev().collect();
    assert_eq!(percentile(&mut values, 50), Some(25));
    assert_eq!(percentile(&mut values, 99), Some(50));
    assert_eq!(percentile(&mut values, 100), Some(50));
    assert_eq!(percentile(&mut [], 50), None);
}

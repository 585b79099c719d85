//! Append tickets: bounds, reclaim after a restart, orders of ends.

use super::*;

#[test]
fn the_number_of_tickets_is_bounded_and_an_end_makes_room() {
    let mut tickets = Tickets::new();
    for ino in 0..APPEND_TICKETS_MAX as u64 {
        tickets.begin(Ino(5 + ino % 3), A, 1, 0, T).unwrap();
    }
    assert_eq!(tickets.begin(F, B, 1, 0, T), Err(ErrorCode::Overloaded));
    assert_eq!(tickets.end(F, A, 0, (1, 1), T), Ok(End::Published(Some(1))));
    assert!(tickets.begin(F, B, 1, 0, T).is_ok());
    assert_eq!(tickets.len(), APPEND_TICKETS_MAX);
    tickets.session_gone(A);
    tickets.session_gone(B);
    assert!(tickets.is_empty());
}

#[test]
fn a_reclaimed_ticket_keeps_its_place() {
    let mut tickets = Tickets::new();
    tickets.reclaim(F, A, (10, 20, false), T);
    tickets.reclaim(F, B, (25, 10, false), T);
    assert!(!tickets.is_open(F, B, 25), "taken");
    tickets.reclaim(F, B, (30, 10, false), T);
    assert_eq!(tickets.begin(F, B, 5, 10, T), Ok(40));
    assert_eq!(tickets.end(F, A, 10, (20, 20), T), published(30));
    tickets.drop_executed(F, B, 30);
    assert_eq!(tickets.end(F, B, 40, (5, 5), T), published(45));
    assert!(tickets.is_empty() && tickets.sessions.is_empty());
    tickets.note_new_place(F, 100);
    tickets.reclaim(F, A, (95, 20, false), T);
    assert!(!tickets.is_open(F, A, 95), "a part of it was given");
    tickets.reclaim(F, A, (90, 10, false), T);
    assert_eq!(tickets.end(F, A, 90, (10, 10), T), published(100));
    // The rest of a longer ticket after a truncation.
    tickets.reclaim(F, A, (90, 3, true), T);
    assert_eq!(tickets.end(F, A, 90, (10, 10), T), published(93));
    tickets.reclaim(F, A, (u64::MAX, 20, false), T);
    tickets.reclaim(F, A, (0, 0, false), T);
    assert!(tickets.is_empty());
}

#[test]
fn the_first_truncation_behind_a_places_beginning_shortens_the_place() {
    let mut tickets = Tickets::new();
    tickets.begin(F, A, 10, 0, T).unwrap();
    tickets.begin(F, B, 10, 0, T).unwrap();
    tickets.begin(F, A, 10, 0, T).unwrap();
    assert_eq!(tickets.end(F, B, 10, (10, 10), T), WAIT);
    tickets.truncate(F, 15);
    let gone = Err(ErrorCode::UnknownLease);
    assert_eq!(tickets.end(F, A, 20, (10, 10), T), gone, "behind the end");
    assert_eq!(tickets.end(F, B, 10, (10, 10), T), WAIT);
    assert_eq!(tickets.begin(F, A, 4, 15, T), Ok(15), "at the new end");
    assert_eq!(tickets.end(F, A, 0, (10, 10), T), published(10));
    assert_eq!(tickets.end(F, B, 10, (10, 10), T), published(15));
    assert_eq!(tickets.end(F, A, 15, (4, 4), T), published(19));
    assert!(tickets.is_empty() && tickets.sessions.is_empty());
    tickets.begin(F, A, 10, 0, T).unwrap();
    tickets.truncate(F, 8);
    tickets.truncate(F, 7);
    assert_eq!(
        tickets.end(F, A, 0, (10, 10), T),
        gone,
        "the second truncation"
    );
    assert!(tickets.is_empty() && tickets.sessions.is_empty());
}

const F: Ino = Ino(5);
const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);
const T: Instant = Instant(0);

fn at(ms: u64) -> Instant {
    T.plus_ms(ms)
}

fn published(end: u64) -> Result<End, ErrorCode> {
    Ok(End::Published(Some(end)))
}

const WAIT: Result<End, ErrorCode> = Ok(End::Wait(Instant(TICKET_MS * 1_000_000)));
const NOTHING: Result<End, ErrorCode> = Ok(End::Published(None));

#[test]
fn only_a_finished_prefix_is_published_and_acknowledged() {
    let mut tickets = Tickets::new();
    assert_eq!(tickets.begin(F, A, 10, 100, T), Ok(100));
    assert_eq!(tickets.begin(F, B, 20, 100, at(5)), Ok(110));
    assert_eq!(tickets.begin(F, A, 5, 100, at(5)), Ok(130));
    assert_eq!(tickets.end(F, B, 110, (20, 20), T), WAIT);
    assert_eq!(tickets.end(F, B, 110, (20, 20), T), WAIT, "asked again");
    assert_eq!(tickets.end(F, A, 100, (10, 10), T), published(110));
    assert_eq!(tickets.end(F, B, 110, (20, 20), T), published(130));
    assert_eq!(
        tickets.end(F, B, 110, (20, 20), T),
        Err(ErrorCode::UnknownLease)
    );
    assert!(tickets.is_open(F, A, 130));
    assert_eq!(tickets.end(F, A, 130, (5, 5), T), published(135));
    assert!(tickets.is_empty() && tickets.sessions.is_empty());
    assert_eq!(tickets.begin(F, A, 1, 135, T), Ok(135));
}

#[test]
fn a_given_up_ticket_is_returned_or_becomes_a_hole() {
    let mut tickets = Tickets::new();
    tickets.begin(F, A, 10, 0, T).unwrap();
    tickets.begin(F, B, 10, 0, T).unwrap();
    tickets.begin(F, A, 10, 0, T).unwrap();
    // The last ticket: its bytes are returned, and the next one gets the same place.
    assert_eq!(tickets.end(F, A, 20, (10, 0), T), NOTHING);
    assert_eq!(tickets.begin(F, B, 7, 0, T), Ok(20));
    // A ticket in the middle: its bytes stay a hole.
    assert_eq!(tickets.end(F, B, 10, (10, 0), T), NOTHING);
    assert_eq!(tickets.end(F, B, 20, (7, 7), T), WAIT);
    assert_eq!(tickets.end(F, A, 0, (10, 10), T), published(10));
    assert_eq!(tickets.end(F, B, 20, (7, 7), T), published(27));
    // Successive given-up tickets are returned together; so is the unused rest of a short one.
    for _ in 0..3 {
        tickets.begin(F, A, 10, 27, T).unwrap();
    }
    assert_eq!(tickets.end(F, A, 37, (10, 4), T), WAIT);
    assert_eq!(tickets.end(F, A, 47, (10, 0), T), NOTHING);
    assert_eq!(tickets.begin(F, B, 1, 27, T), Ok(41));
    assert_eq!(tickets.end(F, A, 27, (10, 0), T), NOTHING);
    assert_eq!(tickets.end(F, A, 37, (10, 4), T), published(41));
}

#[test]
fn an_abandoned_end_of_an_append_delays_no_other() {
    let mut tickets = Tickets::new();
    for session in [A, B, A] {
        tickets.begin(F, session, 10, 0, T).unwrap();
    }
    assert_eq!(tickets.end(F, B, 10, (10, 10), T), WAIT);
    assert_eq!(tickets.end(F, A, 20, (10, 10), T), WAIT);
    // Its time is over, and its client gives it up.
    assert_eq!(tickets.end(F, B, 10, (10, 0), T), NOTHING);
    // The attempt that waits asks again, and publishes nothing.
    let late = tickets.end(F, B, 10, (10, 10), T);
    assert_eq!(late, Err(ErrorCode::Invalid));
    assert_eq!(tickets.end(F, A, 0, (10, 10), T), published(10));
    assert_eq!(tickets.end(F, A, 20, (10, 10), T), published(30));
    assert!(tickets.is_empty() && tickets.sessions.is_empty());
}

#[test]
fn an_ending_session_gives_up_its_tickets() {
    let mut tickets = Tickets::new();
    tickets.begin(F, A, 10, 0, T).unwrap();
    tickets.begin(F, B, 10, 0, T).unwrap();
    tickets.begin(Ino(6), A, 10, 50, T).unwrap();
    assert_eq!(tickets.end(F, B, 10, (10, 10), T), WAIT);
    tickets.session_gone(A);
    assert_eq!(tickets.end(F, B, 10, (10, 10), T), published(20));
    assert_eq!(
        tickets.end(F, A, 0, (10, 10), T),
        Err(ErrorCode::UnknownLease)
    );
    tickets.session_gone(B);
    assert!(tickets.is_empty() && tickets.sessions.is_empty());
    tickets.begin(F, A, 10, 0, T).unwrap();
    tickets.inode_gone(F);
    assert!(tickets.is_empty() && tickets.sessions.is_empty());
}

#[test]
fn an_old_ticket_is_passed_over_and_may_still_end() {
    let mut tickets = Tickets::new();
    tickets.begin(F, A, 10, 0, T).unwrap();
    tickets.begin(F, B, 10, 0, at(9_000)).unwrap();
    assert_eq!(tickets.end(F, B, 10, (10, 10), at(9_001)), WAIT);
    assert_eq!(
        tickets.end(F, B, 10, (10, 10), at(TICKET_MS)),
        published(20)
    );
    // Its bytes lie within the file by now.
    let late = tickets.end(F, A, 0, (10, 10), at(TICKET_MS));
    assert_eq!(late, published(10));
    assert!(tickets.is_empty() && tickets.sessions.is_empty());
}

#[test]
fn numbers_are_checked() {
    let mut tickets = Tickets::new();
    let big = tickets.begin(F, A, 10, FILE_BYTES_MAX - 5, T);
    assert_eq!(big, Err(ErrorCode::FileTooBig));
    assert_eq!(
        tickets.begin(F, A, u64::MAX, 10, T),
        Err(ErrorCode::FileTooBig)
    );
    tickets.begin(F, A, 10, 0, T).unwrap();
    assert_eq!(tickets.end(F, A, 0, (10, 11), T), Err(ErrorCode::Invalid));
    assert_eq!(tickets.end(F, A, 0, (9, 9), T), Err(ErrorCode::Invalid));
    assert_eq!(
        tickets.end(F, B, 0, (10, 10), T),
        Err(ErrorCode::UnknownLease)
    );
}

#[test]
fn random_appends_never_overlap_nor_show_reserved_bytes() {
    let mut dice = 9_u64;
    let mut roll = |sides: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (dice >> 33) % sides
    };
    let mut tickets = Tickets::new();
    let (mut size, mut open, mut done) = (0, Vec::new(), Vec::<(u64, u64)>::new());
    let mut waiting = Vec::new();
    for _ in 0..5000 {
        if roll(2) == 0 && open.len() < 20 {
            let length = 1 + roll(50);
            let offset = tickets.begin(F, A, length, size, T).unwrap();
            let overlaps = |(o, l): &(u64, u64)| *o < offset + length && offset < o + l;
            assert!(!open.iter().any(overlaps) && !done.iter().any(overlaps));
            assert!(offset >= size);
            open.push((offset, length));
        } else if !open.is_empty() {
            let (offset, length) = open.remove(roll(open.len() as u64) as usize);
            let written = if roll(3) == 0 { roll(length) } else { length };
            if written > 0 {
                done.push((offset, written));
            }
            waiting.push((offset, length, written));
        }
        waiting.retain(|(offset, length, written)| {
            match tickets.end(F, A, *offset, (*length, *written), T).unwrap() {
                End::Published(end) => {
                    size = end.unwrap_or(size).max(size);
                    assert!(*written == 0 || offset + written <= size);
                    false
                }
                End::Wait(_) => true,
            }
        });
        assert!(open.iter().all(|(offset, _)| *offset >= size));
    }
    assert_eq!(tickets.passed.len(), 0);
}

#[test]
fn a_place_at_a_lent_end_is_given_again_and_ends_with_what_was_written() {
    let mut tickets = Tickets::new();
    let gone = Err(ErrorCode::UnknownLease);
    assert_eq!(tickets.begin_at(F, A, (100, 10), T), Ok(()));
    assert_eq!(tickets.begin_at(F, A, (100, 30), at(5)), Ok(()), "more");
    assert_eq!(tickets.begin_at(F, A, (100, 20), at(6)), Ok(()), "late");
    assert_eq!(tickets.begin_at(F, B, (100, 10), T), gone);
    assert_eq!(tickets.begin_at(F, A, (90, 20), T), gone, "overlaps");
    assert_eq!(tickets.begin_at(F, A, (110, 5), T), gone, "within");
    assert!(tickets.has_any(F) && !tickets.has_any(Ino(6)));
    assert_eq!(tickets.end(F, A, 100, (31, 31), T), Err(ErrorCode::Invalid));
    assert_eq!(tickets.end(F, A, 100, (20, 20), T), published(120));
    assert!(tickets.is_empty() && tickets.sessions.is_empty());
    assert_eq!(tickets.begin(F, B, 5, 120, T), Ok(120), "no hole is left");
    assert_eq!(tickets.begin_at(F, A, (120, 5), T), gone);
    let big = tickets.begin_at(F, A, (FILE_BYTES_MAX - 5, 6), T);
    assert_eq!(big, Err(ErrorCode::FileTooBig));
    // A ticket that was given up cannot be reclaimed.
    tickets.begin(Ino(6), A, 10, 0, T).unwrap();
    tickets.give_up(Ino(6), A, 0);
    assert_eq!(tickets.begin_at(Ino(6), A, (0, 10), T), gone);
}

#[test]
#[should_panic(expected = "append tickets overlap")]
fn no_two_tickets_reserve_the_same_bytes() {
    let mut tickets = Tickets::new();
    tickets.begin(F, A, 10, 0, T).unwrap();
    let ticket = Ticket::new(B, 10, T);
    tickets.files.get_mut(&F).unwrap().insert(5, ticket);
    check_disjoint(tickets.files.get(&F).unwrap(), 5);
}

//! Tests: the start of a silence, the wait for a silent server, and cancellation.

use super::*;
use std::task::Wake;

const SERVER: &str = "127.0.0.1:9";
const DEADLINE_MS: u64 = 100;
/// Age of a request that was waited for in vain, ms.
const LONG: u64 = DEADLINE_MS;
const NOW: u64 = 0;
const TIMED_OUT: Option<NetFailure> = Some(NetFailure::TimedOut);
const BROKEN: Option<NetFailure> = Some(NetFailure::Unreachable);

fn context(is_awaited: bool) -> OperationContext {
    OperationContext::new(TraceId(1), is_awaited, DEADLINE_MS, Cancellation::default())
}

/// Whether requests of one operation, each with its age and outcome, make the server count as
/// silent.
fn is_silent_after(is_awaited: bool, ends: &[(u64, Option<NetFailure>)]) -> bool {
    let (context, silences) = (context(is_awaited), SilentServers::default());
    let mut now = Instant(0).plus_ms(1_000);
    for (age_ms, failure) in ends {
        now = now.plus_ms(2 * LONG);
        let at = Instant(now.0 - age_ms * 1_000_000);
        context.note_answer(&silences, SERVER, (at, now), *failure);
    }
    silences.is_silent(SERVER, now)
}

#[test]
fn a_silence_begins_when_a_call_has_waited_in_vain() {
    assert!(is_silent_after(true, &[(LONG, TIMED_OUT)]));
    assert!(is_silent_after(true, &[(NOW, BROKEN), (NOW, BROKEN)]));
    // A broken connection was one to a living server, and a brief request has not waited long.
    assert!(!is_silent_after(true, &[(LONG, BROKEN)]));
    assert!(!is_silent_after(true, &[(NOW, TIMED_OUT)]));
    // An answer in between ends the count.
    let answered = [(NOW, BROKEN), (NOW, None), (NOW, BROKEN)];
    assert!(!is_silent_after(true, &answered));
    assert!(!is_silent_after(true, &[(LONG, TIMED_OUT), (NOW, None)]));
    // The client's own work may take long.
    assert!(!is_silent_after(false, &[(LONG, TIMED_OUT)]));
}

#[test]
fn a_call_waits_briefly_for_a_silent_server_and_as_long_again_for_others() {
    let (call, silences, now) = (context(true), SilentServers::default(), Instant(5));
    assert_eq!(call.limit(&silences, SERVER, now, 10_000), 10_000);
    assert_eq!(call.ends(), None);
    silences.begin(SERVER, now, DEADLINE_MS);
    let brief = call.limit(&silences, SERVER, now, 10_000);
    let expected = OperationEnds {
        repeats: now.plus_ms(brief.into()),
        all: now.plus_ms(2 * u64::from(brief)),
    };
    assert!(brief < 10_000);
    assert_eq!(call.ends(), Some(expected));
    // Neither the client's own work nor later operations get the brief deadline.
    let own = context(false);
    assert_eq!(own.limit(&silences, SERVER, now, 10_000), 10_000);
    assert_eq!((own.ends(), context(true).ends()), (None, None));
}

#[test]
fn an_operation_ends_a_fifth_after_the_deadline_of_its_first_request_without_an_answer() {
    let (call, silences) = (context(true), SilentServers::default());
    let at = |ms: u64| Instant(0).plus_ms(ms);
    let ends = |ms: u64| Some(at(ms + 120));
    call.note_answer(&silences, SERVER, (at(1_000), at(1_100)), TIMED_OUT);
    call.note_answer(&silences, "127.0.0.1:8", (at(1_100), at(1_110)), TIMED_OUT);
    assert_eq!(call.ends().map(|ends| ends.all), ends(1_000));
    // An answer of another server changes nothing.
    call.note_answer(&silences, "127.0.0.1:8", (at(1_110), at(1_110)), None);
    assert_eq!(call.ends().map(|ends| ends.all), ends(1_000));
    call.note_answer(&silences, SERVER, (at(1_110), at(1_115)), None);
    assert_eq!(call.ends(), None);
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_cancelled_operation_is_woken_once_and_cannot_wait() {
    let (call, [first, second]) = (context(true), [0; 2].map(|_| Arc::new(Woken::default())));
    let given_up = call.cancellation().clone();
    call.waits(&first.clone().into()).unwrap();
    call.waits_no_more();
    call.waits(&second.clone().into()).unwrap();
    given_up.cancel();
    let woken = |woken: &Woken| woken.0.load(Ordering::SeqCst);
    assert!(!woken(&first) && woken(&second));
    let refused = call.waits(&first.clone().into());
    assert_eq!(refused, Err(NetFailure::Refused(ErrorCode::Interrupted)));
    assert!(!context(true).cancellation().is_set());
}

#[test]
fn a_brief_part_ends_whatever_servers_answer_and_begins_no_silence() {
    let (silences, begun) = (SilentServers::default(), Instant(5));
    let end = begun.plus_ms(500);
    let call = OperationContext::brief(TraceId(1), Cancellation::default(), end);
    let ends = Some(OperationEnds {
        repeats: end,
        all: end,
    });
    call.note_answer(&silences, SERVER, (begun, begun), None);
    assert_eq!(call.ends(), ends);
    call.note_answer(&silences, SERVER, (begun, begun.plus_ms(LONG)), TIMED_OUT);
    assert_eq!(call.ends(), ends);
    assert!(!silences.is_silent(SERVER, end));
    assert!(call.is_brief() && !call.is_of_listing() && !context(true).is_brief());
}

#[test]
fn an_endless_operation_has_no_end_and_begins_no_silence() {
    let (mut call, silences) = (context(true), SilentServers::default());
    call.set_endless(true);
    let (begun, now) = (Instant(5), Instant(5).plus_ms(10 * LONG));
    for failure in [TIMED_OUT, BROKEN, BROKEN] {
        call.note_answer(&silences, SERVER, (begun, now), failure);
    }
    assert!(call.ends().is_none() && !silences.is_silent(SERVER, now));
    // A silence that the client's own work has begun does not shorten its attempts.
    silences.begin(SERVER, now, DEADLINE_MS);
    assert_eq!(call.limit(&silences, SERVER, now, 10_000), 10_000);
    // An answer ends the silence for all.
    call.note_answer(&silences, SERVER, (begun, now), None);
    assert!(!silences.is_silent(SERVER, now));
}

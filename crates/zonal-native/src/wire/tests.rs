//! When a silence begins, and what a call has for a silent server.

use super::*;
use zonal_net::{Identity, PoolConfig, Role};
use zonal_types::{CellId, NodeId};

const SERVER: ([u8; 4], u16) = ([127, 0, 0, 1], 9);
const DEADLINE_MS: u64 = 100;
/// What has lasted so long was waited for in vain.
const LONG: Duration = Duration::from_millis(DEADLINE_MS);

fn net() -> RealNet {
    let identity = Identity::new(CellId([7; 16]), Role::Client, NodeId(0), None);
    let pool = Arc::new(Pool::new(identity, PoolConfig::default()));
    RealNet::new(pool).with_deadline(DEADLINE_MS)
}

/// Requests that end one after the other on one thread, each with its age and outcome; whether that begins a silence.
fn is_silent_after(is_call: bool, ends: &'static [(Duration, Option<NetFailure>)]) -> bool {
    let server = SocketAddr::from(SERVER);
    let thread = std::thread::spawn(move || {
        let net = net();
        if is_call {
            net.working_on(1);
        }
        for (age, failure) in ends {
            std::thread::sleep(2 * LONG);
            let age = u64::try_from(age.as_nanos()).unwrap_or(0);
            let at = Instant(net.now().0 - age);
            net.note_outcome(server, at, failure.as_ref());
        }
        net.silences.is_silent(server, net.now())
    });
    thread.join().unwrap_or(false)
}

#[test]
fn a_silence_begins_when_a_call_has_waited_in_vain() {
    const TIMED_OUT: Option<NetFailure> = Some(NetFailure::TimedOut);
    const BROKEN: Option<NetFailure> = Some(NetFailure::Unreachable);
    const NOW: Duration = Duration::ZERO;
    assert!(is_silent_after(true, &[(LONG, TIMED_OUT)]));
    assert!(is_silent_after(true, &[(NOW, BROKEN), (NOW, BROKEN)]));
    // A connection that breaks was one to a living server; a brief request has not waited for long.
    assert!(!is_silent_after(true, &[(LONG, BROKEN)]));
    assert!(!is_silent_after(true, &[(NOW, TIMED_OUT)]));
    // An answer in between.
    assert!(!is_silent_after(
        true,
        &[(NOW, BROKEN), (NOW, None), (NOW, BROKEN)]
    ));
    assert!(!is_silent_after(true, &[(LONG, TIMED_OUT), (NOW, None)]));
    // The mount's own threads wait for what takes long.
    assert!(!is_silent_after(false, &[(LONG, TIMED_OUT)]));
}

#[test]
fn a_call_waits_briefly_for_a_silent_server_and_as_long_again_for_others() {
    let thread = std::thread::spawn(|| {
        let (net, server) = (net(), SocketAddr::from(SERVER));
        net.working_on(1);
        let now = net.now();
        assert_eq!(net.limit(server, now, 10_000), 10_000);
        assert_eq!(net.operation_ends(), None);
        net.silences.begin(server, now, DEADLINE_MS);
        let brief = net.limit(server, now, 10_000);
        let ends = net.operation_ends();
        let expected = Ends {
            repeats: now.plus_ms(brief.into()),
            all: now.plus_ms(2 * u64::from(brief)),
        };
        assert!(brief < 10_000 && ends == Some(expected), "{ends:?}");
    });
    assert!(thread.join().is_ok());
}

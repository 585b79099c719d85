//! Failures of requests: which of them pass, which leave the outcome open, and the pause before a
//! retry.

use crate::transport::net::NetFailure;
use zonal_types::ErrorCode;

/// Pause before a retry: first and longest, ms.
pub(crate) const RETRY_MS: (u64, u64) = (20, 500);

/// The error for a caller whose deadline passed before a retry. The server may still execute the
/// request, and has refused nothing. The client would take codes on which it acts for a refusal,
/// and drop unsent bytes.
pub(crate) fn late(code: ErrorCode) -> ErrorCode {
    match code {
        ErrorCode::UnknownSession
        | ErrorCode::NotReady
        | ErrorCode::NotOwner
        | ErrorCode::StaleEpoch
        | ErrorCode::StaleTruncate
        | ErrorCode::TruncateUnconfirmed
        | ErrorCode::Superseded
        | ErrorCode::Fenced
        | ErrorCode::Overtaken
        | ErrorCode::WrongTarget => ErrorCode::TimedOut,
        other => other,
    }
}

/// True where a retry may help.
pub(crate) fn is_passing(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::Unreachable | ErrorCode::TimedOut | ErrorCode::NotReady | ErrorCode::Overloaded
    )
}

/// True where unsent bytes are gathered again, so that nothing is lost.
pub(crate) fn leaves_gathered(code: ErrorCode) -> bool {
    is_passing(code) || code == ErrorCode::Interrupted
}

/// Combines two steps of a flush. An error that leaves bytes to send comes first; a loss is
/// reported to the opens of the file anyway. Otherwise the first failure.
pub(crate) fn both(
    one: Result<(), ErrorCode>,
    other: Result<(), ErrorCode>,
) -> Result<(), ErrorCode> {
    match (one, other) {
        (Err(lost), Err(left)) if leaves_gathered(left) && !leaves_gathered(lost) => other,
        _ => one.and(other),
    }
}

/// True where a request may have been executed, or may be executed by a retry.
pub(crate) fn is_unsure(code: ErrorCode) -> bool {
    is_passing(code)
        || matches!(
            code,
            ErrorCode::Interrupted
                | ErrorCode::StaleEpoch
                | ErrorCode::NotOwner
                | ErrorCode::Fenced
        )
}

/// The error code of a request without a reply.
#[must_use]
pub fn failure_code(failure: NetFailure) -> ErrorCode {
    match failure {
        NetFailure::Unreachable => ErrorCode::Unreachable,
        NetFailure::TimedOut | NetFailure::Silent => ErrorCode::TimedOut,
        NetFailure::Refused(code) => code,
    }
}

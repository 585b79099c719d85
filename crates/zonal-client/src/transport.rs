//! Transport: what the client core asks of its environment, the context of an operation, and how an
//! operation waits for servers.

pub(crate) mod in_flight;
pub(crate) mod listing_silences;
pub(crate) mod mutex;
pub(crate) mod net;
pub(crate) mod operation;
pub(crate) mod retry;
pub(crate) mod root_silence;
pub(crate) mod run;
pub(crate) mod silent_servers;

pub use net::{ClientNotice, Message, Net, NetFailure, ServerReply};
pub use operation::{Cancellation, OperationContext};
pub use retry::failure_code;
pub use run::{Run, ShellMemory};

//! Data: opened files, and reading, writing, appending, truncating and syncing them.

mod abandoned_appends;
mod append;
mod copies;
mod fallocate;
mod first_reply;
mod flush;
mod gathered_appends;
mod inline_data;
mod open_files;
mod ordered_batches;
mod privileges;
mod read;
pub(crate) mod relocated_places;
mod report;
mod seek_and_copy;
mod send_window;
pub(crate) mod stale_copies;
mod statfs;
mod storage_retry;
mod sync;
mod tail_ownership;
mod target_sync;
mod traffic_reports;
mod truncate;
mod write;

pub use fallocate::Reserve;
pub use read::ReadInto;
pub use send_window::WINDOW_BYTES as WRITE_WINDOW_BYTES;
pub use statfs::Capacity;

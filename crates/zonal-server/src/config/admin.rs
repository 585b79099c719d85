//! Where the admin pages are, and who may see them.

use super::check::Source;
use super::raw::RawAdmin;
use super::{AdminConfig, ConfigError};
use std::path::Path;

impl Source<'_> {
    pub(super) fn admin(
        &self,
        raw: &RawAdmin,
        folder: &Path,
        has_key: bool,
    ) -> Result<AdminConfig, ConfigError> {
        let listen = self.address("admin.listen", &raw.listen)?;
        let token_file = raw.token_file.as_ref();
        if !has_key && !listen.ip().is_loopback() {
            return Err(self.together(
                "`admin.listen` outside of loopback needs a cell key: set `key_file`, or listen on 127.0.0.1",
            ));
        }
        if token_file.is_none() && !listen.ip().is_loopback() {
            return Err(ConfigError::AdminOpen {
                path: self.path.to_owned(),
                line: self.line(raw.listen.span().start),
                listen,
            });
        }
        Ok(AdminConfig {
            listen,
            token_file: token_file.map(|file| super::check::beside(folder, file)),
        })
    }
}

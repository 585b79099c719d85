//! Config of the admin pages: address and token.

use super::check::Source;
use super::raw::{RawAdmin, RawNode};
use super::{AdminConfig, ConfigError};
use std::path::Path;

impl Source<'_> {
    /// Checks the admin pages of a node of `file`; `key` names their address.
    pub(super) fn admin(
        &self,
        key: &'static str,
        raw: &RawAdmin,
        file: &RawNode,
    ) -> Result<AdminConfig, ConfigError> {
        let listen = self.address(key, &raw.listen)?;
        let token_file = raw.token_file.as_ref();
        if file.key_file.is_none() && !listen.ip().is_loopback() {
            return Err(self.together(format!(
                "`{key}` outside of loopback needs a credential: set `key_file`, or listen on 127.0.0.1",
            )));
        }
        if token_file.is_none() && !listen.ip().is_loopback() {
            return Err(ConfigError::AdminOpen {
                path: self.path.to_owned(),
                line: self.line(raw.listen.span().start),
                key,
                listen,
            });
        }
        let folder = self.path.parent().unwrap_or(Path::new("."));
        Ok(AdminConfig {
            listen,
            token_file: token_file.map(|file| super::check::beside(folder, file)),
        })
    }
}

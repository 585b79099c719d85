//! Config of the admin pages: address and token; address of gRPC.

use super::check::Source;
use super::cross_checks::clash;
use super::raw::{RawAdmin, RawNode};
use super::{AdminConfig, ConfigError};
use std::net::SocketAddr;
use std::path::Path;
use toml::Spanned;

impl Source<'_> {
    /// Checks the admin pages of a node of `file`; `key` names their address.
    pub(super) fn admin(
        &self,
        key: &'static str,
        raw: &RawAdmin,
        file: &RawNode,
    ) -> Result<AdminConfig, ConfigError> {
        let listen = self.guarded(key, &raw.listen, raw, file)?;
        let grpc = match &raw.grpc {
            Some(_) if key != "admin.listen" || file.manager.is_none() => {
                return Err(self.together("`grpc` is for [admin] of the manager's node"));
            }
            Some(address) => Some(self.guarded("admin.grpc", address, raw, file)?),
            None => None,
        };
        if grpc.is_some_and(|grpc| clash(grpc, listen)) {
            return Err(self.together("`grpc` needs a port of its own, beside the admin pages"));
        }
        let folder = self.path.parent().unwrap_or(Path::new("."));
        Ok(AdminConfig {
            listen,
            token_file: raw
                .token_file
                .as_ref()
                .map(|file| super::check::beside(folder, file)),
            grpc,
        })
    }

    /// An address that is on loopback, or asks for a credential and a token.
    fn guarded(
        &self,
        key: &'static str,
        address: &Spanned<String>,
        raw: &RawAdmin,
        file: &RawNode,
    ) -> Result<SocketAddr, ConfigError> {
        let listen = self.address(key, address)?;
        if file.key_file.is_none() && !listen.ip().is_loopback() {
            return Err(self.together(format!(
                "`{key}` outside of loopback needs a credential: set `key_file`, or listen on 127.0.0.1",
            )));
        }
        if raw.token_file.is_none() && !listen.ip().is_loopback() {
            return Err(ConfigError::AdminOpen {
                path: self.path.to_owned(),
                line: self.line(address.span().start),
                key,
                listen,
            });
        }
        Ok(listen)
    }
}

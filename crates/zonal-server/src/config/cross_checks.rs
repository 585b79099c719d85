//! Cross-checks of a config: roles and their keys, addresses and the credential.

use super::check::Source;
use super::raw::RawNode;
use super::{ConfigError, NodeConfig};
use std::net::SocketAddr;

impl Source<'_> {
    pub(super) fn together(&self, message: impl Into<String>) -> ConfigError {
        ConfigError::Together {
            path: self.path.to_owned(),
            message: message.into(),
        }
    }

    /// The nodes of a file, the manager's first.
    pub(super) fn nodes(&self, raw: &RawNode) -> Result<Vec<NodeConfig>, ConfigError> {
        let first = self.node(raw)?;
        let second = self.second_node(raw, &first)?;
        if first.roles().is_empty() {
            return Err(self.together("no role: add [manager], [meta], [storage] or [agent]"));
        }
        self.check_addresses(&first, "")?;
        let Some(second) = second else {
            return Ok(vec![first]);
        };
        self.check_addresses(&second, " of [meta]")?;
        Ok(vec![first, second])
    }

    /// Owner and group of the root directory.
    pub(super) fn root_owner(&self, raw: &RawNode) -> Result<(u32, u32), ConfigError> {
        if raw.meta.as_ref().is_some_and(|meta| {
            let meta = meta.get_ref();
            meta.root_uid.or(meta.root_gid).is_some()
        }) {
            return Err(self.together(
                "`root_uid` and `root_gid` are for [manager]: its shard has the root directory",
            ));
        }
        let manager = raw.manager.as_ref();
        let uid = manager.and_then(|manager| manager.root_uid);
        let gid = manager.and_then(|manager| manager.root_gid);
        Ok((uid.unwrap_or(0), gid.unwrap_or(0)))
    }

    /// Checks the addresses of a node. `place` names the table of their keys in messages.
    fn check_addresses(&self, config: &NodeConfig, place: &str) -> Result<(), ConfigError> {
        if config.advertise.ip().is_unspecified() {
            return Err(self.together(format!(
                "others cannot connect to an unspecified address: set `advertise`{place}"
            )));
        }
        if config.key_file.is_none() && !config.listen.ip().is_loopback() {
            return Err(self.together(format!(
                "`listen`{place} outside of loopback needs a credential: set `key_file`"
            )));
        }
        if let Some(admin) = &config.admin
            && (clash(admin.listen, config.listen)
                || admin.grpc.is_some_and(|grpc| clash(grpc, config.listen)))
        {
            return Err(self.together(format!(
                "the admin pages cannot be at `listen`{place} as well: give them a port of their own"
            )));
        }
        Ok(())
    }
}

/// True where two addresses cannot be bound at the same time. Port 0 stands for any free port.
pub(super) fn clash(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() != 0
        && one.port() == other.port()
        && (one.ip() == other.ip() || is_any && one.is_ipv4() == other.is_ipv4())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_cannot_both_be_bound_clash() {
        let clash = |one: &str, other: &str| clash(one.parse().unwrap(), other.parse().unwrap());
        assert!(clash("127.0.0.1:7100", "127.0.0.1:7100"));
        assert!(clash("0.0.0.0:7100", "127.0.0.1:7100"));
        assert!(!clash("127.0.0.2:7100", "127.0.0.1:7100"));
        assert!(!clash("[::]:7100", "127.0.0.1:7100"));
        assert!(!clash("127.0.0.1:7100", "127.0.0.1:7101"));
        assert!(!clash("127.0.0.1:0", "127.0.0.1:0"));
    }
}

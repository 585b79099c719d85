//! The second node of a file with every role: `[meta]` beside `[manager]`.
//!
//! A node has one shard and one address, so the zone's shard gets a node of its own, with keys in
//! `[meta]`. Both nodes share the rest of the file. `[storage]` belongs to the manager's node,
//! which starts first and stops last, so that the zone's shard always has its target.

use super::check::Source;
use super::cross_checks::clash;
use super::raw::{RawMeta, RawNode};
use super::{AdminConfig, ConfigError, NodeConfig, UplinkRates};
use crate::units::Millis;
use toml::Spanned;
use zonal_types::limits::{REBUILD_AFTER_MS_DEFAULT, SET_WIDTH_DEFAULT};
use zonal_zonemap::SubnetTable;

const MISPLACED: &str =
    "is for a file with [manager] as well: here [meta] is a role of the node at the top";

impl Source<'_> {
    fn second_error(&self, at: usize, key: &'static str, message: &'static str) -> ConfigError {
        ConfigError::SecondNode {
            path: self.path.to_owned(),
            line: self.line(at),
            key,
            message,
        }
    }

    /// The second node, which `[meta]` describes where `first` has the manager role.
    pub(super) fn second_node(
        &self,
        raw: &RawNode,
        first: &NodeConfig,
    ) -> Result<Option<NodeConfig>, ConfigError> {
        let Some(table) = &raw.meta else {
            return Ok(None);
        };
        let (at, meta) = (table.span().start, table.get_ref());
        if raw.manager.is_none() {
            return self.refuse_misplaced(meta).map(|()| None);
        }
        let Some(node) = &meta.node else {
            let message = "is missing: beside [manager] it is a second node, which needs a number of its own, such as `node = 2`";
            return Err(self.second_error(at, "meta.node", message));
        };
        let Some(listen) = &meta.listen else {
            let message = "is missing: beside [manager] it is a second node, which needs an address of its own, such as `listen = \"127.0.0.1:7101\"`";
            return Err(self.second_error(at, "meta.listen", message));
        };
        let second = NodeConfig {
            node: self.number("meta.node", node)?,
            listen: self.address("meta.listen", listen)?,
            advertise: match &meta.advertise {
                Some(advertise) => self.address("meta.advertise", advertise)?,
                None => self.address("meta.listen", listen)?,
            },
            admin: match &meta.admin {
                Some(admin) => Some(self.admin("meta.admin.listen", admin.get_ref(), raw)?),
                None => None,
            },
            inline_bytes: self.inline(meta.inline.as_ref())?,
            root_owner: (0, 0),
            replicated: meta.replicated,
            meta_zone: self.meta_zone(Some(meta))?,
            replicas: 1,
            shards: 1,
            set_width: SET_WIDTH_DEFAULT,
            rebuild_after: Millis(REBUILD_AFTER_MS_DEFAULT),
            subnets: SubnetTable::default(),
            uplinks: UplinkRates::default(),
            manager_role: None,
            meta_role: Some(self.meta(meta)?),
            storage_role: None,
            agent_role: None,
            ..first.clone()
        };
        if second.node == first.node {
            let message = "is the number of the node at the top: a second node has another one";
            return Err(self.second_error(node.span().start, "meta.node", message));
        }
        self.refuse_shared(meta, &second, first)?;
        Ok(Some(second))
    }

    fn refuse_misplaced(&self, meta: &RawMeta) -> Result<(), ConfigError> {
        let keys = [
            ("meta.node", meta.node.as_ref().map(Spanned::span)),
            ("meta.listen", meta.listen.as_ref().map(Spanned::span)),
            ("meta.advertise", meta.advertise.as_ref().map(Spanned::span)),
            ("meta.admin", meta.admin.as_ref().map(Spanned::span)),
        ];
        for (key, span) in keys {
            if let Some(span) = span {
                return Err(self.second_error(span.start, key, MISPLACED));
            }
        }
        Ok(())
    }

    /// Refuses addresses that both nodes would use.
    fn refuse_shared(
        &self,
        meta: &RawMeta,
        second: &NodeConfig,
        first: &NodeConfig,
    ) -> Result<(), ConfigError> {
        let at = |admin: &AdminConfig| admin.listen;
        let taken = [Some(first.listen), first.admin.as_ref().map(at)];
        let admin = meta.admin.as_ref().map(|admin| &admin.get_ref().listen);
        let listened = [
            ("meta.listen", meta.listen.as_ref(), Some(second.listen)),
            ("meta.admin.listen", admin, second.admin.as_ref().map(at)),
        ];
        for (key, written, address) in listened {
            let (Some(written), Some(address)) = (written, address) else {
                continue;
            };
            if taken.iter().flatten().any(|taken| clash(*taken, address)) {
                let message = "is an address of the node at the top: a second node has another one";
                return Err(self.second_error(written.span().start, key, message));
            }
        }
        match meta.advertise.as_ref().or(meta.listen.as_ref()) {
            Some(written) if second.advertise == first.advertise => {
                let message = "is what the node at the top advertises: a second node has an address of its own";
                Err(self.second_error(written.span().start, "meta.advertise", message))
            }
            _ => Ok(()),
        }
    }
}

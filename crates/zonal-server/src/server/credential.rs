//! The credential of a node: read, and compared with its config before anything is served.

use std::sync::Arc;

use zonal_disk::trusted_paths;
use zonal_net::credential::CREDENTIAL_BYTES_MAX;
use zonal_net::{Credential, Role};

use crate::config::NodeConfig;
use crate::error::ServerError;

/// The node's credential, where the config names one.
pub(super) fn read_credential(config: &NodeConfig) -> Result<Option<Arc<Credential>>, ServerError> {
    let Some(path) = &config.key_file else {
        return Ok(None);
    };
    let failed = |source| ServerError::Credential {
        path: path.clone(),
        source,
    };
    let pem = trusted_paths::secret(path, CREDENTIAL_BYTES_MAX as u64).map_err(ServerError::Key)?;
    let credential = Credential::from_pem(&pem).map_err(failed)?;
    credential.check_now().map_err(failed)?;
    let subject = credential.subject();
    if subject.cell != config.cell || !subject.may_be(Role::Server, config.node) {
        return Err(ServerError::CredentialOfOther {
            path: path.clone(),
            subject: subject.to_string(),
            node: config.node,
        });
    }
    let (has, needs) = (subject.roles(), config.server_roles());
    if !has.include(needs) {
        return Err(ServerError::CredentialRoles {
            path: path.clone(),
            has: has.to_string(),
            needs: needs.to_string(),
        });
    }
    Ok(Some(Arc::new(credential)))
}

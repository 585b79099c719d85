//! Access of a command to a cell: `--cell DIR|ADDRESS`, the credential, and calls to its servers.

use super::cell_locator::CellLocator;
use super::folder::{CellFolder, default_dir};
use crate::exit::{CONFIG, DAMAGED_HINT, FAILED, Failure, NOT_FOUND, REFUSED, UNREACHABLE};
use anyhow::Context;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use zonal_basics::const_u32;
use zonal_disk::trusted_paths::{self, PathRefusal};
use zonal_net::credential::CREDENTIAL_BYTES_MAX;
use zonal_net::{
    Address, Credential, Identity, PayloadInto, Peer, Pool, PoolConfig, Request, Role, SubjectKind,
};
use zonal_server::NodeConfig;
use zonal_types::limits::{JUNCTIONS_LISTED_MAX, REPLICA_ATTEMPT_MS};
use zonal_types::{CellId, Codec, ErrorCode, NodeId};
use zonal_wire::{
    AdminReply, AdminRequest, Header, ManagerReply, ManagerRequest, MetaReply, MetaRequest,
    Service, StorageReply, StorageRequest,
};
use zonal_zonemap::known_manager::is_of_follower;
use zonal_zonemap::{Fetch, FetchError, Junction, KnownLeaders, KnownManager, Shard, ZoneMap};

/// Arguments that select a cell.
#[derive(Debug, Clone, clap::Args)]
pub struct CellArgs {
    /// The cell: folder made by `zonal up`, or managers as IP:PORT or HOST:PORT, with commas
    /// between
    /// [default: /var/lib/zonal/default for root, ~/.zonal/default for others]
    #[arg(
        long,
        value_name = "DIR|ADDRESS",
        env = "ZONAL_CELL",
        hide_env_values = true
    )]
    pub cell: Option<String>,
    /// File with this machine's credential (`zonal key create`), where the cell has keys and --cell
    /// is an address
    #[arg(
        long,
        value_name = "FILE",
        env = "ZONAL_KEY_FILE",
        hide_env_values = true
    )]
    pub key_file: Option<PathBuf>,
}

/// A cell whose servers can be called.
pub struct CellHandle {
    /// The cell's folder, if it was named by one.
    pub folder: Option<CellFolder>,
    /// The cell's id; all zero while only an address is known.
    pub id: CellId,
    /// Addresses of managers, one at least.
    pub managers: Vec<SocketAddr>,
    /// The manager that answered last, and the newest map that tells of others.
    manager: KnownManager,
    known: Mutex<Arc<ZoneMap>>,
    /// The credential of this process.
    pub credential: Option<Arc<Credential>>,
    pool: Pool,
    leaders: KnownLeaders,
}

/// A server's refusal of a call.
#[derive(Debug)]
pub struct CallRefusal {
    /// The error code in the reply.
    pub code: ErrorCode,
    text: String,
}

impl std::fmt::Display for CallRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for CallRefusal {}

fn read_credential(path: Option<&Path>) -> anyhow::Result<Option<Arc<Credential>>> {
    let Some(path) = path else {
        return Ok(None);
    };
    let pem = trusted_paths::secret(path, CREDENTIAL_BYTES_MAX as u64).map_err(|error| {
        let text = format!("credential {error}");
        match (&error, error.hint()) {
            (_, Some(hint)) => Failure::new(REFUSED, text).hint(hint),
            (PathRefusal::Io { .. }, None) if error.is_missing() => Failure::new(NOT_FOUND, text)
                .hint("name the file that `zonal key create` made for this machine"),
            _ => Failure::new(FAILED, text),
        }
    })?;
    let bad = |error| Failure::new(CONFIG, format!("{}: {error}", path.display()));
    let credential = Credential::from_pem(&pem);
    let credential = credential.map_err(|error| bad(error).hint(DAMAGED_HINT))?;
    credential.check_now().map_err(|error| {
        bad(error).hint("`zonal key create` makes a new one; is this machine's clock right?")
    })?;
    Ok(Some(Arc::new(credential)))
}

impl CellArgs {
    /// The folder or address that names the cell. An empty ZONAL_CELL counts as unset.
    pub fn named(&self) -> Option<&str> {
        let is_unset = std::env::var_os("ZONAL_CELL").is_some_and(|cell| cell.is_empty());
        let said = self.cell.as_deref();
        said.filter(|cell| !(is_unset && cell.is_empty()))
    }

    /// Resolves the arguments to a cell without calling a server.
    pub fn open(&self) -> anyhow::Result<CellHandle> {
        let named = self.named().map(CellLocator::of).transpose()?;
        let dir = match named {
            Some(CellLocator::Managers(managers)) => {
                crate::exit::cell_has_no_folder();
                let key = read_credential(self.key_file.as_deref())?;
                return Ok(CellHandle::new(None, CellId::default(), managers, key));
            }
            Some(CellLocator::Folder(dir)) => dir,
            None => default_dir(),
        };
        let folder = CellFolder::open(&dir)?;
        let key_path = folder
            .file
            .key_file
            .as_ref()
            .map(|file| folder.dir.join(file));
        let key = read_credential(self.key_file.as_deref().or(key_path.as_deref()))?;
        let (id, managers) = (folder.cell()?, folder.file.managers());
        Ok(CellHandle::new(Some(folder), id, managers, key))
    }
}

/// Deadline of a call.
const DEADLINE: Duration = Duration::from_secs(3);
/// How long a command waits for a manager that leads.
const ELECTION: Duration = Duration::from_secs(5);
/// Pause between two rounds of questions meanwhile.
const ELECTION_PAUSE: Duration = Duration::from_millis(200);

fn pool_of(me: Identity, deadline: Duration) -> Pool {
    let config = PoolConfig {
        deadline,
        connect_limit: deadline,
        backoff: Duration::ZERO,
        ..PoolConfig::default()
    };
    Pool::new(me, config)
}

impl CellHandle {
    fn new(
        folder: Option<CellFolder>,
        id: CellId,
        managers: Vec<SocketAddr>,
        credential: Option<Arc<Credential>>,
    ) -> Self {
        // With a client's credential the connection has the client's role, not that of a command.
        let role = match credential.as_ref().map(|known| &known.subject().kind) {
            Some(SubjectKind::Client { .. }) => Role::Client,
            _ => Role::Tool,
        };
        let me = Identity::new(id, role, NodeId(0), credential.clone());
        Self {
            folder,
            id: me.cell,
            managers,
            manager: KnownManager::default(),
            known: Mutex::new(Arc::new(ZoneMap::unknown(me.cell))),
            credential,
            pool: pool_of(me, DEADLINE),
            leaders: KnownLeaders::default(),
        }
    }

    /// The same cell, with another deadline of each call.
    pub fn with_deadline(self, deadline: Duration) -> Self {
        let me = self.pool.identity().clone();
        let pool = pool_of(me, deadline);
        Self { pool, ..self }
    }

    /// The cell of a folder, for `zonal up`.
    pub fn of_folder(folder: &CellFolder) -> anyhow::Result<Self> {
        let key_path = folder
            .file
            .key_file
            .as_ref()
            .map(|file| folder.dir.join(file));
        let key = read_credential(key_path.as_deref())?;
        Ok(Self::new(
            Some(folder.clone()),
            folder.cell()?,
            folder.file.managers(),
            key,
        ))
    }

    /// The cell of a node, as its config names it.
    pub fn of_config(config: &NodeConfig) -> anyhow::Result<Self> {
        let key = read_credential(config.key_file.as_deref())?;
        Ok(Self::new(None, config.cell, config.managers.clone(), key))
    }

    /// Connects to a node's server to learn whether it answers.
    pub fn probe(&self, address: SocketAddr, node: NodeId) -> Result<Peer, zonal_net::NetError> {
        self.pool.probe(Address::new(address, node))
    }

    /// Sends a request to a server.
    pub fn call<T: Codec>(
        &self,
        to: Address,
        service: Service,
        operation: &'static str,
        body: &[u8],
    ) -> anyhow::Result<T> {
        self.call_with(to, Header::request(service, self.id), operation, body)
    }

    /// Sends a request to a server with the caller's header.
    pub fn call_with<T: Codec>(
        &self,
        to: Address,
        header: Header,
        operation: &'static str,
        body: &[u8],
    ) -> anyhow::Result<T> {
        let request = Request {
            operation,
            header,
            body,
            payload: &[],
            room: 0,
        };
        let reply = self.pool.call(to, request, PayloadInto::Owned)?;
        T::from_bytes(&reply.body).with_context(|| format!("the reply of {to}"))
    }

    /// Sends a request with the caller's header to a shard: to its owner, or the replica that
    /// leads.
    pub fn call_shard(
        &self,
        map: &ZoneMap,
        shard: &Shard,
        header: Header,
        request: &MetaRequest,
    ) -> anyhow::Result<MetaReply> {
        let attempts = self.leaders.attempts(map, shard.id);
        let mut attempts = attempts.with_context(|| format!("no shard {} in the map", shard.id))?;
        let mut header = header;
        if attempts.is_among_several() {
            header.deadline_ms = const_u32(REPLICA_ATTEMPT_MS);
        }
        let body = request.to_bytes();
        loop {
            let node = attempts.node();
            let to = Self::address(map, node);
            let called = to.and_then(|to| self.call_with(to, header, request.name(), &body));
            if attempts.is_over(node, &called) {
                return called;
            }
        }
    }

    /// Sends an admin request to a shard, as [`Self::call_shard`] does; returns the reply and who
    /// gave it. A refusal is an error.
    pub fn admin_of_shard(
        &self,
        map: &ZoneMap,
        shard: &Shard,
        request: &AdminRequest,
    ) -> anyhow::Result<(AdminReply, NodeId)> {
        let attempts = self.leaders.attempts(map, shard.id);
        let mut attempts = attempts.with_context(|| format!("no shard {} in the map", shard.id))?;
        loop {
            let node = attempts.node();
            let asked = Self::address(map, node).and_then(|to| self.ask(to, request));
            let failed = match &asked {
                Ok(Ok(_reply)) => None,
                Ok(Err(refusal)) => Some(refusal.code),
                Err(_no_answer) => Some(ErrorCode::Unreachable),
            };
            if attempts.is_over_after(node, failed) {
                return Ok((asked??, node));
            }
        }
    }

    /// Sends a request and a payload to a target; returns its reply and payload.
    pub fn storage(
        &self,
        to: Address,
        request: &StorageRequest,
        payload: &[u8],
    ) -> anyhow::Result<(StorageReply, Vec<u8>)> {
        let sent = Request {
            operation: request.name(),
            header: Header::request(Service::Storage, self.id),
            body: &request.to_bytes(),
            payload: &[payload],
            room: 0,
        };
        let reply = self.pool.call(to, sent, PayloadInto::Owned)?;
        let message = StorageReply::from_bytes(&reply.body);
        let message = message.with_context(|| format!("the reply of {to}"))?;
        Ok((message, reply.payload))
    }

    /// The address of a node in the map.
    pub fn address(map: &ZoneMap, node: NodeId) -> anyhow::Result<Address> {
        let known = map.node(node);
        let known = known.with_context(|| format!("the zone map has no node {node}"))?;
        let tcp = known.address.parse();
        Ok(Address::new(
            tcp.with_context(|| format!("address of node {node}"))?,
            node,
        ))
    }

    /// Sends an admin request; a refusal is an error.
    pub fn admin(&self, to: Address, request: &AdminRequest) -> anyhow::Result<AdminReply> {
        Ok(self.ask(to, request)??)
    }

    /// Sends an admin request; the inner result holds a refusal.
    pub fn ask(
        &self,
        to: Address,
        request: &AdminRequest,
    ) -> anyhow::Result<Result<AdminReply, CallRefusal>> {
        match self.call(to, Service::Admin, request.name(), &request.to_bytes())? {
            AdminReply::Failed { code, detail } => {
                let code = code.0;
                let text = format!("{to} refuses: {detail} ({code})");
                Ok(Err(CallRefusal { code, text }))
            }
            reply => Ok(Ok(reply)),
        }
    }

    /// Fetches the zone map from the manager.
    pub fn map(&self) -> anyhow::Result<ZoneMap> {
        self.newest_map(Arc::new(ZoneMap::unknown(self.id)))
            .map(Arc::unwrap_or_clone)
    }

    /// Fetches what is newer than the known zone map from the manager.
    pub fn newest_map(&self, known: Arc<ZoneMap>) -> anyhow::Result<Arc<ZoneMap>> {
        let ask = |request: &ManagerRequest| match self.ask_manager(request) {
            Ok(reply) => Ok(reply),
            Err(error) => Err(Unfetched(
                error.context("the manager does not give the zone map"),
            )),
        };
        let map = Fetch::newer(known).run(ask);
        if let Ok(map) = &map {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.clone_from(map);
        }
        map.map_err(|Unfetched(error)| match error.downcast_ref() {
            Some(FetchError::Refused { code, .. }) if *code == ErrorCode::WrongTarget => {
                let text = format!("{} is not a manager", self.managers_text());
                Failure::new(UNREACHABLE, text)
                    .hint("--cell takes addresses of managers")
                    .into()
            }
            Some(FetchError::Decode(_)) => Failure::new(UNREACHABLE, error.to_string())
                .hint("use the same version of zonal everywhere")
                .into(),
            Some(_) => Failure::new(UNREACHABLE, error.to_string()).into(),
            None => error,
        })
    }

    /// An address that stands for the cell on this machine: of a manager.
    pub fn first_manager(&self) -> SocketAddr {
        let none = SocketAddr::from(([0, 0, 0, 0], 0));
        self.managers.first().copied().unwrap_or(none)
    }

    /// Addresses of managers, for a client.
    pub fn manager_list(&self) -> Vec<String> {
        self.managers.iter().map(SocketAddr::to_string).collect()
    }

    /// Addresses of managers, with commas between them, as `--cell` takes them.
    pub fn managers_text(&self) -> String {
        self.manager_list().join(",")
    }

    /// Sends a request to the manager that leads. Where there are several, waits for an election.
    pub fn ask_manager(&self, request: &ManagerRequest) -> anyhow::Result<ManagerReply> {
        let configured = self.manager_list();
        let mut refused = None;
        let until = Instant::now() + ELECTION;
        loop {
            let known = Arc::clone(&self.known.lock().unwrap_or_else(PoisonError::into_inner));
            let managers = self.manager.order(&known, &configured);
            let is_among_several = managers.len() > 1;
            let mut header = Header::request(Service::Manager, self.id);
            if is_among_several {
                header.deadline_ms = const_u32(REPLICA_ATTEMPT_MS);
            }
            for manager in &managers {
                let to = Address::any_node(manager.parse()?);
                let body = request.to_bytes();
                match self.call_with::<ManagerReply>(to, header, request.name(), &body) {
                    Ok(reply) if is_of_follower(&reply) => refused = Some(Ok(reply)),
                    Ok(reply) => {
                        self.manager.answered(manager);
                        return Ok(reply);
                    }
                    Err(error) if is_among_several => {
                        self.manager.silent(manager, &managers);
                        refused.get_or_insert(Err(error));
                    }
                    Err(error) => return Err(error),
                }
            }
            // A manager that does not lead tells where the others are.
            if !matches!(
                request,
                ManagerRequest::GetMap { .. } | ManagerRequest::GetMapPart { .. }
            ) {
                let _ = self.newest_map(known);
            }
            match refused.take() {
                Some(outcome) if Instant::now() >= until => return outcome,
                _ => std::thread::sleep(ELECTION_PAUSE),
            }
        }
    }

    /// Visits all junctions in the order of their paths; fetches them page by page.
    pub fn junctions(&self, visit: &mut dyn FnMut(&Junction)) -> anyhow::Result<()> {
        let mut after = None;
        loop {
            let entries = const { const_u32(JUNCTIONS_LISTED_MAX as u64) };
            let reply = self.ask_manager(&ManagerRequest::Junctions { after, entries })?;
            let ManagerReply::Junctions { junctions, end, .. } = reply else {
                let text = format!("the manager answers {reply:?}");
                return Err(Failure::new(UNREACHABLE, text).into());
            };
            junctions.iter().for_each(&mut *visit);
            match junctions.into_iter().next_back() {
                Some(last) if !end => after = Some((last.path, last.ino)),
                _ => return Ok(()),
            }
        }
    }
}

/// The failure to fetch the map.
struct Unfetched(anyhow::Error);

impl From<FetchError> for Unfetched {
    fn from(error: FetchError) -> Self {
        Self(error.into())
    }
}

//! The functions behind the calls, and their form as a tonic service.

use crate::proto::placement_server::Placement;
use crate::proto::{
    EndJobRequest, JobReply, ListJobsReply, ListJobsRequest, ListZonesReply, ListZonesRequest,
    LocateReply, LocateRequest, PlaceReply, PlaceRequest, ReleaseReply, ReleaseRequest,
    ReportJobRequest, StartJobRequest, WatchReply, WatchRequest,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// Calls of `Watch` at once; one more is refused (`RESOURCE_EXHAUSTED`).
pub(crate) const WATCH_CALLS_MAX: usize = 64;

/// Replies to one caller of `Watch` that it has not taken yet; then changes wait in their log.
const REPLIES_MAX: usize = 4;

/// Time after which a change is seen at the latest.
const TICK: Duration = Duration::from_millis(250);

/// The answer to a call.
type Answer<T> = Result<Response<T>, Status>;

/// The functions behind the calls. None of them waits: they run on the runtime's one thread.
#[expect(
    clippy::missing_errors_doc,
    reason = "each refuses as docs/placement-service.md lists"
)]
pub trait PlacementCalls: Send + Sync + 'static {
    /// Whether calls are answered here; asked before each.
    fn check(&self) -> Result<(), Status>;
    /// `ListZones`.
    fn list_zones(&self) -> ListZonesReply;
    /// `Locate`.
    fn locate(&self, request: LocateRequest) -> Result<LocateReply, Status>;
    /// `Place`.
    fn place(&self, request: PlaceRequest) -> Result<PlaceReply, Status>;
    /// `Release`.
    fn release(&self, request: &ReleaseRequest) -> Result<ReleaseReply, Status>;
    /// Changes behind a version; `None` where there is nothing new.
    fn changes(&self, since: Option<u64>) -> Option<WatchReply>;
    /// `StartJob`.
    fn start_job(&self, request: StartJobRequest) -> Result<JobReply, Status>;
    /// `ReportJob`.
    fn report_job(&self, request: &ReportJobRequest) -> Result<JobReply, Status>;
    /// `EndJob`.
    fn end_job(&self, request: &EndJobRequest) -> Result<JobReply, Status>;
    /// `ListJobs`.
    fn list_jobs(&self) -> ListJobsReply;
}

/// The tonic service.
pub(crate) struct CallsService {
    calls: Arc<dyn PlacementCalls>,
    watchers: Arc<Semaphore>,
}

impl CallsService {
    pub(crate) fn new(calls: Arc<dyn PlacementCalls>) -> Self {
        Self {
            calls,
            watchers: Arc::new(Semaphore::new(WATCH_CALLS_MAX)),
        }
    }
}

#[tonic::async_trait]
impl Placement for CallsService {
    async fn list_zones(&self, _request: Request<ListZonesRequest>) -> Answer<ListZonesReply> {
        self.calls.check()?;
        Ok(Response::new(self.calls.list_zones()))
    }

    async fn locate(&self, request: Request<LocateRequest>) -> Answer<LocateReply> {
        self.calls.check()?;
        self.calls.locate(request.into_inner()).map(Response::new)
    }

    async fn place(&self, request: Request<PlaceRequest>) -> Answer<PlaceReply> {
        self.calls.check()?;
        self.calls.place(request.into_inner()).map(Response::new)
    }

    async fn release(&self, request: Request<ReleaseRequest>) -> Answer<ReleaseReply> {
        self.calls.check()?;
        self.calls.release(request.get_ref()).map(Response::new)
    }

    type WatchStream = ReceiverStream<Result<WatchReply, Status>>;

    async fn watch(&self, request: Request<WatchRequest>) -> Answer<Self::WatchStream> {
        self.calls.check()?;
        let permit = Arc::clone(&self.watchers).try_acquire_owned();
        let permit = permit.map_err(|_| {
            Status::resource_exhausted(format!("{WATCH_CALLS_MAX} calls of Watch are open"))
        })?;
        let (give, take) = mpsc::channel(REPLIES_MAX);
        let since = request.get_ref().since;
        tokio::spawn(send_changes(Arc::clone(&self.calls), since, give, permit));
        Ok(Response::new(ReceiverStream::new(take)))
    }

    async fn start_job(&self, request: Request<StartJobRequest>) -> Answer<JobReply> {
        self.calls.check()?;
        self.calls
            .start_job(request.into_inner())
            .map(Response::new)
    }

    async fn report_job(&self, request: Request<ReportJobRequest>) -> Answer<JobReply> {
        self.calls.check()?;
        self.calls.report_job(request.get_ref()).map(Response::new)
    }

    async fn end_job(&self, request: Request<EndJobRequest>) -> Answer<JobReply> {
        self.calls.check()?;
        self.calls.end_job(request.get_ref()).map(Response::new)
    }

    async fn list_jobs(&self, _request: Request<ListJobsRequest>) -> Answer<ListJobsReply> {
        self.calls.check()?;
        Ok(Response::new(self.calls.list_jobs()))
    }
}

/// Sends changes until the caller goes away.
async fn send_changes(
    calls: Arc<dyn PlacementCalls>,
    mut since: Option<u64>,
    give: mpsc::Sender<Result<WatchReply, Status>>,
    _permit: OwnedSemaphorePermit,
) {
    loop {
        if let Some(reply) = calls.changes(since) {
            since = Some(reply.version);
            if give.send(Ok(reply)).await.is_err() {
                return;
            }
        }
        if tokio::time::timeout(TICK, give.closed()).await.is_ok() {
            return;
        }
    }
}

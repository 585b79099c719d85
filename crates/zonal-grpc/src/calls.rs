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

/// The functions behind the calls. None of them waits: they run on the runtime's one thread.
#[expect(
    clippy::missing_errors_doc,
    reason = "each refuses as docs/placement-service.md lists"
)]
pub trait PlacementCalls: Send + Sync + 'static {
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
    async fn list_zones(
        &self,
        _request: Request<ListZonesRequest>,
    ) -> Result<Response<ListZonesReply>, Status> {
        Ok(Response::new(self.calls.list_zones()))
    }

    async fn locate(
        &self,
        request: Request<LocateRequest>,
    ) -> Result<Response<LocateReply>, Status> {
        self.calls.locate(request.into_inner()).map(Response::new)
    }

    async fn place(&self, request: Request<PlaceRequest>) -> Result<Response<PlaceReply>, Status> {
        self.calls.place(request.into_inner()).map(Response::new)
    }

    async fn release(
        &self,
        request: Request<ReleaseRequest>,
    ) -> Result<Response<ReleaseReply>, Status> {
        self.calls.release(request.get_ref()).map(Response::new)
    }

    type WatchStream = ReceiverStream<Result<WatchReply, Status>>;

    async fn watch(
        &self,
        request: Request<WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let permit = Arc::clone(&self.watchers).try_acquire_owned();
        let permit = permit.map_err(|_| {
            Status::resource_exhausted(format!("{WATCH_CALLS_MAX} calls of Watch are open"))
        })?;
        let (give, take) = mpsc::channel(REPLIES_MAX);
        let since = request.get_ref().since;
        tokio::spawn(send_changes(Arc::clone(&self.calls), since, give, permit));
        Ok(Response::new(ReceiverStream::new(take)))
    }

    async fn start_job(
        &self,
        request: Request<StartJobRequest>,
    ) -> Result<Response<JobReply>, Status> {
        self.calls
            .start_job(request.into_inner())
            .map(Response::new)
    }

    async fn report_job(
        &self,
        request: Request<ReportJobRequest>,
    ) -> Result<Response<JobReply>, Status> {
        self.calls.report_job(request.get_ref()).map(Response::new)
    }

    async fn end_job(&self, request: Request<EndJobRequest>) -> Result<Response<JobReply>, Status> {
        self.calls.end_job(request.get_ref()).map(Response::new)
    }

    async fn list_jobs(
        &self,
        _request: Request<ListJobsRequest>,
    ) -> Result<Response<ListJobsReply>, Status> {
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

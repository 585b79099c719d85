//! The calls over a real connection, with and without the token.

use super::*;
use crate::admin::Token;
use crate::config::UplinkRates;
use crate::manager_link::ManagerService;
use crate::manager_tests::{join, manager, manager_joins};
use std::net::TcpListener;
use std::time::Duration;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};
use zonal_grpc::PlacementCallServer;
use zonal_grpc::proto::placement_client::PlacementClient;
use zonal_testkit::Scratch;

const SAID: &str = "Bearer 0123456789abcdef";

/// A server of a manager with a node in zone 2 and one in zone 3.
fn server(scratch: &Scratch) -> PlacementCallServer {
    let (manager, map) = manager(scratch);
    manager_joins(&manager);
    for (node, zone, uuid) in [(2, 2, 2), (3, 3, 3)] {
        let joined = manager.handle(join(node, zone, true, Some((node, uuid))));
        assert_eq!(crate::manager_tests::failed(&joined), None, "{joined:?}");
    }
    let uplinks = UplinkRates::default();
    let manager = ManagerService::Alone(Arc::new(manager));
    let service = PlacementService::new(map, manager, uplinks, true);
    let token = Token::new(b"0123456789abcdef").unwrap();
    PlacementCallServer::start(
        TcpListener::bind("127.0.0.1:0").unwrap(),
        Arc::new(move |said: &str| token.is_in(said)),
        Arc::new(ServiceCalls::new(Arc::new(service))),
    )
    .unwrap()
}

fn with_token<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let said = MetadataValue::from_static(SAID);
    request.metadata_mut().insert("authorization", said);
    request
}

async fn connect(server: &PlacementCallServer) -> PlacementClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address())).unwrap();
    PlacementClient::new(endpoint.connect().await.unwrap())
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    runtime.block_on(async {
        let limit = Duration::from_secs(60);
        tokio::time::timeout(limit, test).await.unwrap();
    });
}

fn place(nodes: u64) -> Request<proto::PlaceRequest> {
    with_token(proto::PlaceRequest {
        nodes,
        bytes: HashMap::from([(3, 7)]),
        ..proto::PlaceRequest::default()
    })
}

#[test]
fn each_function_of_the_pages_is_a_call() {
    let scratch = Scratch::new("placement-grpc");
    let server = server(&scratch);
    run(async {
        let mut client = connect(&server).await;
        let zones = client.list_zones(with_token(proto::ListZonesRequest {}));
        let zones = zones.await.unwrap().into_inner().zones;
        assert_eq!(
            zones.iter().map(|zone| zone.zone).collect::<Vec<_>>(),
            [2, 3]
        );

        let placed = client.place(place(1)).await.unwrap().into_inner();
        assert_eq!((placed.zone, placed.nodes[0].id, placed.cost), (3, 3, 0));
        let reservation = placed.reservation.unwrap();
        let refused = client.place(place(2)).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);

        let located = client.locate(with_token(proto::LocateRequest {
            bytes: HashMap::from([(3, 7)]),
            ..proto::LocateRequest::default()
        }));
        let located = located.await.unwrap().into_inner();
        assert_eq!(
            (located.matrix[0].costs[0].cost, located.costs[1].cost),
            (7, 0)
        );

        let started = client.start_job(with_token(proto::StartJobRequest {
            name: "j".to_owned(),
            reservation: Some(reservation),
            ..proto::StartJobRequest::default()
        }));
        let job = started.await.unwrap().into_inner().job;
        let gone = client.release(with_token(proto::ReleaseRequest { reservation }));
        assert_eq!(gone.await.unwrap_err().code(), Code::NotFound);
        let report = proto::ReportJobRequest {
            job,
            in_zone_bytes: 3,
            cross_zone_bytes: 1,
        };
        client.report_job(with_token(report)).await.unwrap();
        let jobs = client.list_jobs(with_token(proto::ListJobsRequest {}));
        let jobs = jobs.await.unwrap().into_inner();
        assert_eq!(
            (jobs.running, jobs.jobs[0].in_zone_per_mille),
            (1, Some(750))
        );
        let end = proto::EndJobRequest {
            job,
            has_failed: true,
            ..proto::EndJobRequest::default()
        };
        client.end_job(with_token(end)).await.unwrap();
        assert_eq!(
            client.end_job(with_token(end)).await.unwrap_err().code(),
            Code::NotFound
        );
    });
}

#[test]
fn a_watcher_gets_changes_until_the_server_ends() {
    let scratch = Scratch::new("watch-grpc");
    let server = server(&scratch);
    run(async {
        let mut client = connect(&server).await;
        let request = with_token(proto::WatchRequest { since: None });
        let mut changes = client.watch(request).await.unwrap().into_inner();
        let first = changes.message().await.unwrap().unwrap();
        assert!(first.changes.is_empty(), "{first:?}");
        let placed = client.place(place(1)).await.unwrap().into_inner();
        let next = changes.message().await.unwrap().unwrap();
        assert!(next.version > first.version);
        assert_eq!(Some(next.changes[0].id), placed.reservation);
        drop(server);
        assert!(changes.message().await.is_err());
    });
}

#[test]
fn without_the_token_every_call_is_refused() {
    let scratch = Scratch::new("token-grpc");
    let server = server(&scratch);
    run(async {
        let mut client = connect(&server).await;
        let refused = client.list_jobs(proto::ListJobsRequest {}).await;
        assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated);
        let refused = client.watch(proto::WatchRequest { since: None }).await;
        assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated);
    });
}

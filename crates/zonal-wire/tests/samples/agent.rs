//! Samples of messages of agents.

use zonal_types::{Blob, Credentials, ErrorCode};
use zonal_wire::{
    AgentReply, AgentRequest, ErrorNumber, JobCommand, OutputStream, RankEvent, RankStatus,
};

fn blob(text: &str) -> Blob {
    Blob(text.as_bytes().to_vec())
}

fn command() -> JobCommand {
    JobCommand {
        arguments: vec![blob("echo"), blob("a b")],
        environment: vec![blob("PATH=/bin"), blob("X=")],
        directory: blob("/tmp"),
        umask: 0o027,
        user: Credentials {
            uid: 1000,
            gid: 1001,
            groups: vec![1002],
        },
    }
}

pub fn agent_requests() -> Vec<AgentRequest> {
    use AgentRequest as A;
    vec![
        A::Describe,
        A::Start {
            job: 0x0102_0304_0506_0708,
            ranks: vec![2, 3],
            size: 8,
            awaits_all: true,
            input_rank: Some(2),
            command: command(),
        },
        A::Poll {
            job: 7,
            acked: 300,
            wait_ms: 2000,
        },
        A::Stdin {
            job: 8,
            rank: 1,
            offset: 4096,
            bytes: blob("line\n"),
            end: false,
        },
        A::Signal { job: 9, signal: 15 },
        A::End { job: 10 },
    ]
}

pub fn agent_replies() -> Vec<AgentReply> {
    use AgentReply as R;
    let output = |rank, stream, text| RankEvent::Output {
        rank,
        stream,
        bytes: blob(text),
    };
    let ended = |rank, status| RankEvent::Ended { rank, status };
    let detail = "no such command".to_owned();
    vec![
        R::Failed {
            code: ErrorNumber(ErrorCode::NotPermitted),
            detail: "root runs nothing here".into(),
        },
        R::Done,
        R::Description {
            ranks: 3,
            ranks_max: 1024,
            processors: 16,
            is_standby: true,
            cpu_per_mille: Some(250),
        },
        R::Events {
            next: 306,
            running: 1,
            events: vec![
                output(1, OutputStream::Stdout, "out\n"),
                output(2, OutputStream::Stderr, "error\n"),
                ended(1, RankStatus::Exited { code: 3 }),
                ended(2, RankStatus::Signalled { signal: 9 }),
                ended(3, RankStatus::NotStarted { code: 127, detail }),
            ],
        },
        R::Taken { offset: 4101 },
    ]
}

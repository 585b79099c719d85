//! Messages of commands that run jobs on a node, through its agent.
//!
//! An asker starts all ranks of a job that belong to one node with one `Start`. Then it polls for
//! their output and their ends. Each request may arrive twice: `Start` and `End` change nothing the
//! second time, `Poll` and `Stdin` name positions.

#![expect(missing_docs, reason = "fields are described with their variant")]

use crate::storage::ErrorNumber;
use zonal_types::{Blob, Credentials, codec_enum, codec_struct};

codec_struct! {
    /// A command line with its surroundings.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct JobCommand {
        /// The program and its arguments.
        arguments: Vec<Blob>,
        /// `NAME=VALUE`; nothing of the agent's own environment is added but `ZONAL_...`.
        environment: Vec<Blob>,
        /// Working directory.
        directory: Blob,
        umask: u32,
        /// The user who runs it.
        user: Credentials,
    }
}

codec_enum! {
    /// An output stream of a rank.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum OutputStream {
        Stdout = 1,
        Stderr = 2,
    }
}

codec_enum! {
    /// How a rank ended.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum RankStatus {
        Exited = 1 { code: u8 },
        Signalled = 2 { signal: u8 },
        /// The command was not started. `code`: as a shell has it, 127 where the command does not
        /// exist, else 126.
        NotStarted = 3 { code: u8, detail: String },
    }
}

codec_enum! {
    /// Output of a rank, or its end.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum RankEvent {
        Output = 1 { rank: u32, stream: OutputStream, bytes: Blob },
        /// The rank's last event.
        Ended = 2 { rank: u32, status: RankStatus },
    }
}

codec_enum! {
    /// A request of a command to a node's agent.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum AgentRequest {
        /// Asks whether there is an agent, and for its load.
        Describe = 1,
        /// Starts ranks of a job of `size` ranks. `job`: a random number, which names it here.
        /// `awaits_all`: a rank ends with its last process; otherwise its first process ends it,
        /// and what the command left running is killed. `input_rank`: the one rank whose standard
        /// input `Stdin` fills; that of the others is empty.
        Start = 10 { job: u64, ranks: Vec<u32>, size: u32, awaits_all: bool, input_rank: Option<u32>, command: JobCommand },
        /// Events from `acked` on; earlier ones are dropped. Where there are none, the reply comes
        /// within `wait_ms`. A job without polls is ended.
        Poll = 11 { job: u64, acked: u64, wait_ms: u32 },
        /// Bytes for the standard input of a rank, from `offset` of it on; `end`: no more follow.
        Stdin = 12 { job: u64, rank: u32, offset: u64, bytes: Blob, end: bool },
        /// Sends a signal to the process groups of all ranks.
        Signal = 13 { job: u64, signal: u8 },
        /// Kills all processes of a job, and forgets it once they are gone.
        End = 14 { job: u64 },
    }
}

codec_enum! {
    /// The reply of an agent.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum AgentReply {
        Failed = 0 { code: ErrorNumber, detail: String },
        Done = 1,
        /// `ranks` of `ranks_max` run; `processors` of the node. `is_standby`: to be used only
        /// where nothing else is left. `cpu_per_mille`: used CPU of its machine; `None`: not known,
        /// or other nodes run on this machine.
        Description = 2 { ranks: u32, ranks_max: u32, processors: u32, is_standby: bool, cpu_per_mille: Option<u16> },
        /// `next`: the position behind the events. `running`: ranks whose end is not among the
        /// events so far.
        Events = 11 { next: u64, running: u32, events: Vec<RankEvent> },
        /// The position up to which standard input was taken.
        Taken = 12 { offset: u64 },
    }
}

impl JobCommand {
    /// Bytes of its strings, each with four more, as the kernel and the agent count them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let strings = self.arguments.iter().chain(&self.environment);
        strings
            .chain([&self.directory])
            .map(|string| string.0.len() + 4)
            .sum()
    }

    /// Whether each string can be given to the kernel: there is a program, no string has a byte 0,
    /// and each variable has a name.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let strings = || self.arguments.iter().chain(&self.environment);
        let program = self.arguments.first();
        program.is_some_and(|program| !program.0.is_empty())
            && !self.directory.0.is_empty()
            && strings()
                .chain([&self.directory])
                .all(|string| !string.0.contains(&0))
            && self.environment.iter().all(|variable| {
                let at = variable.0.iter().position(|byte| *byte == b'=');
                at.is_some_and(|at| at > 0)
            })
    }
}

//! `zonal rank-guard` and `zonal rank-process`: hidden; an agent starts them for each rank.

use anyhow::Context;
use zonal_server::agent_role::{run_rank_guard, run_rank_process};

/// Ends all processes of a rank when its agent says so, or is gone
#[derive(Debug, clap::Args)]
pub struct RankGuard {}

impl RankGuard {
    pub fn run(self) -> anyhow::Result<()> {
        run_rank_guard().context("guard of a rank")
    }
}

/// Becomes the user and the command of a rank
#[derive(Debug, clap::Args)]
pub struct RankProcess {}

impl RankProcess {
    pub fn run(self) -> anyhow::Result<()> {
        run_rank_process().context("first process of a rank")
    }
}

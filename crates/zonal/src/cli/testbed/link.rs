//! `zonal testbed cut|heal|rate|delay`: changes of a link.

use super::TestbedArgs;
use crate::console;
use crate::testbed::conditions::{self, LinkDelay, LinkLoss, StoredCondition};
use crate::testbed::links;
use crate::testbed::shape::LinkRate;
use crate::testbed::state::{TestbedFolder, TestbedState};
use clap::Args;

/// Cut a link: nothing passes in either direction
#[derive(Debug, Args)]
pub struct TestbedCut {
    #[command(flatten)]
    testbed: TestbedArgs,
    /// Link of a node (r1n2), or uplink of a rack (r1)
    link: String,
}

/// Heal a link: it is whole again, without added delay or loss
#[derive(Debug, Args)]
pub struct TestbedHeal {
    #[command(flatten)]
    testbed: TestbedArgs,
    /// Link of a node (r1n2), or uplink of a rack (r1)
    link: String,
}

/// Give a link another rate, in both directions
#[derive(Debug, Args)]
pub struct TestbedRate {
    #[command(flatten)]
    testbed: TestbedArgs,
    /// Link of a node (r1n2), or uplink of a rack (r1)
    link: String,
    /// Rate on the wire: kbit, mbit or gbit a second
    #[arg(value_name = "RATE")]
    rate: LinkRate,
}

/// Add a delay to each frame that Zonal sends over a link, and loss
///
/// The servers, mounts and commands of the nodes hold their own frames back; other programs notice
/// nothing. A delay of 0 without --loss takes both away. docs/testbed.md tells how near this is to
/// a real link.
#[derive(Debug, Args)]
pub struct TestbedDelay {
    #[command(flatten)]
    testbed: TestbedArgs,
    /// Link of a node (r1n2), or uplink of a rack (r1)
    link: String,
    /// Delay in each direction: us, ms or s, at most 10s
    #[arg(value_name = "TIME")]
    delay: LinkDelay,
    /// Frames of Zonal that are lost in each direction, in percent, at most 50; a lost one comes
    /// after TCP has sent it again
    #[arg(long, value_name = "PERCENT", default_value = "0")]
    loss: LinkLoss,
    /// Seed of the losses on all links [default: as before, 0 at first]
    #[arg(long)]
    seed: Option<u64>,
}

fn set_cut(testbed: &TestbedArgs, link: &str, is_cut: bool) -> anyhow::Result<()> {
    let folder = testbed.open()?;
    let _lock = folder.lock()?;
    let mut state = folder.state()?;
    let link = state.plan().find_link(link)?;
    links::set_cut(&link, is_cut)?;
    if !is_cut && state.conditions.remove(&link.name).is_some() {
        save_conditions(&folder, &state)?;
    }
    let word = if is_cut { "cut" } else { "whole" };
    console::line(format_args!("link {} is {word}", link.name));
    Ok(())
}

fn save_conditions(folder: &TestbedFolder, state: &TestbedState) -> anyhow::Result<()> {
    folder.save(state)?;
    conditions::write(folder, state)
}

impl TestbedCut {
    pub fn run(self) -> anyhow::Result<()> {
        set_cut(&self.testbed, &self.link, true)
    }
}

impl TestbedHeal {
    pub fn run(self) -> anyhow::Result<()> {
        set_cut(&self.testbed, &self.link, false)
    }
}

impl TestbedRate {
    pub fn run(self) -> anyhow::Result<()> {
        let rate = self.rate.checked()?;
        let folder = self.testbed.open()?;
        let _lock = folder.lock()?;
        let mut state = folder.state()?;
        let link = state.plan().find_link(&self.link)?;
        links::set_rate(&link, rate)?;
        state.rates.insert(link.name.clone(), rate);
        folder.save(&state)?;
        console::line(format_args!("link {} has {rate}", link.name));
        Ok(())
    }
}

impl TestbedDelay {
    pub fn run(self) -> anyhow::Result<()> {
        let added = StoredCondition {
            delay_us: self.delay,
            lost_of_million: self.loss,
        };
        let added = added.checked()?;
        let folder = self.testbed.open()?;
        let _lock = folder.lock()?;
        let mut state = folder.state()?;
        let link = state.plan().find_link(&self.link)?;
        state.conditions.remove(&link.name);
        if !added.is_none() {
            state.conditions.insert(link.name.clone(), added);
        }
        state.loss_seed = self.seed.unwrap_or(state.loss_seed);
        save_conditions(&folder, &state)?;
        console::line(format_args!(
            "link {} adds {} to each frame and loses {}",
            link.name, added.delay_us, added.lost_of_million
        ));
        Ok(())
    }
}

//! `zonal testbed cut|heal|rate`: changes of a link.

use super::TestbedArgs;
use crate::console;
use crate::testbed::links;
use crate::testbed::shape::LinkRate;
use clap::Args;

/// Cut a link: nothing passes in either direction
#[derive(Debug, Args)]
pub struct TestbedCut {
    #[command(flatten)]
    testbed: TestbedArgs,
    /// Link of a node (r1n2), or uplink of a rack (r1)
    link: String,
}

/// Heal a link that was cut
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

fn set_cut(testbed: &TestbedArgs, link: &str, is_cut: bool) -> anyhow::Result<()> {
    let folder = testbed.open()?;
    let _lock = folder.lock()?;
    let link = folder.state()?.plan().find_link(link)?;
    links::set_cut(&link, is_cut)?;
    let word = if is_cut { "cut" } else { "whole" };
    console::line(format_args!("link {} is {word}", link.name));
    Ok(())
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

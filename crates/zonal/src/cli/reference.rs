//! The hidden `zonal cli-reference`: prints the help of all commands as one document,
//! docs/cli-reference.md.

use super::Cli;
use crate::{console, exit};
use clap::CommandFactory;

/// Print docs/cli-reference.md
#[derive(Debug, clap::Args)]
pub struct CliReference {}

impl CliReference {
    #[expect(clippy::unnecessary_wraps, reason = "all commands have one shape")]
    pub fn run(self) -> anyhow::Result<()> {
        let mut root = Cli::command().term_width(100).disable_version_flag(true);
        root.build();
        let mut text = String::from(
            "# Command line reference\n\nMade by `zonal cli-reference > docs/cli-reference.md`; a test compares it.\n\n\
             ## Exit codes\n\n| code | meaning |\n| --- | --- |\n",
        );
        for (code, meaning) in exit::TABLE {
            text.push_str(&format!("| {code} | {meaning} |\n"));
        }
        text.push_str(
            "\n`mount.zonal`, which mount(8) runs, ends as mount(8) does: 1 for wrong usage, 32 where the mount failed.\n\
             `zonal run` and `zonal rsh` end as their ranks do: [error-codes.md](error-codes.md#exit-codes-of-zonal-run-and-zonal-rsh).\n",
        );
        describe(&mut root, "zonal", &mut text);
        console::lines(text.trim_end());
        Ok(())
    }
}

fn describe(command: &mut clap::Command, path: &str, text: &mut String) {
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    text.push_str(&format!(
        "\n## {path}\n\n```text\n{}\n```\n",
        lines.join("\n").trim_end()
    ));
    let names: Vec<String> = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set() && command.get_name() != "help")
        .map(|command| command.get_name().to_owned())
        .collect();
    for name in names {
        if let Some(inner) = command.find_subcommand_mut(&name) {
            describe(inner, &format!("{path} {name}"), text);
        }
    }
}

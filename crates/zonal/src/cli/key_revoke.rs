//! `zonal key revoke`: selects the credentials, and refuses those that the cell needs.

use super::key::{AuthorityArgs, ask};
use crate::cell::connection::CellArgs;
use crate::cell::keyring::{COMMANDS, CredentialKind, IssuedLine, serial_in, shown};
use crate::console;
use crate::exit::{FAILED, Failure, NOT_FOUND, REFUSED, USAGE};
use zonal_net::Serial;
use zonal_wire::{ManagerReply, ManagerRequest};

#[derive(Debug, clap::Args)]
pub struct Revoke {
    #[command(flatten)]
    cell: CellArgs,
    #[command(flatten)]
    authority: AuthorityArgs,
    /// A serial number, or the name of a client, an administrator or a node ("node 3"): all
    /// credentials of the name, except with --but-newest
    #[arg(value_name = "SERIAL|NAME")]
    which: String,
    /// Keep the newest credential of the name: revoke the others after a renewal
    #[arg(long)]
    but_newest: bool,
    /// Read the argument as a serial number even if a holder has it as a name
    #[arg(long, conflicts_with = "but_newest")]
    serial: bool,
    /// Also revoke credentials that the cell itself needs: its own commands' (then refused over
    /// TCP), or a node's (then nobody reaches its server). Also a serial number missing from the
    /// list, which may have been lost
    #[arg(long)]
    force: bool,
}

/// The credentials that an argument selects.
fn chosen(
    which: &str,
    issued: &[IssuedLine],
    (as_serial, but_newest): (bool, bool),
) -> Result<Chosen, Failure> {
    let serial = serial_in(which);
    if as_serial && serial.is_none() {
        let text = format!("{which} is no serial number");
        return Err(Failure::new(USAGE, text).hint("it has 16 hexadecimal digits"));
    }
    let is_named = |line: &&IssuedLine| !as_serial && line.name() == which;
    let mut named: Vec<IssuedLine> = issued.iter().filter(is_named).cloned().collect();
    let same = |line: &&IssuedLine| serial.is_some() && line.number() == serial;
    let of_serial = issued.iter().find(same);
    if !named.is_empty() && of_serial.is_some() {
        let text = format!("{which} is the serial number of one credential and the name of others");
        return Err(Failure::new(USAGE, text)
            .hint("--serial selects the first; name each of the others by its serial number"));
    }
    let is_mixed = |pair: &[IssuedLine]| matches!(pair, [a, b] if a.kind() != b.kind());
    if named.windows(2).any(is_mixed) {
        let text = format!("{which} is the name of a client and of an administrator");
        return Err(Failure::new(USAGE, text)
            .hint("name each credential by its serial number, which `zonal key ls` shows"));
    }
    if !named.is_empty() {
        if but_newest {
            named.pop();
        }
        return Ok(Chosen::Listed(named));
    }
    match (serial, of_serial) {
        (Some(_), _) if but_newest => {
            let text = format!("--but-newest goes with a name; {which} is a serial number");
            Err(Failure::new(USAGE, text).hint("leave it away"))
        }
        (Some(_), Some(line)) => Ok(Chosen::Listed(vec![line.clone()])),
        (Some(serial), None) => Ok(Chosen::Unknown(serial)),
        (None, _) => Ok(Chosen::Listed(Vec::new())),
    }
}

enum Chosen {
    /// Credentials in the list.
    Listed(Vec<IssuedLine>),
    /// A serial number missing from the list.
    Unknown(Serial),
}

/// The consequence of revoking a credential that the cell needs; `None` for any other.
fn needed(line: &IssuedLine, own: Option<Serial>) -> Option<&'static str> {
    match line.kind() {
        Some(CredentialKind::Server) => {
            Some("nobody reaches that server until it has a new credential and is restarted")
        }
        Some(CredentialKind::Admin) if own == line.number() || line.name() == COMMANDS => {
            Some("commands that use the cell's folder are refused by TCP until it has a new one")
        }
        _ => None,
    }
}

impl Revoke {
    pub fn run(self) -> anyhow::Result<()> {
        let issued = self
            .authority
            .open(&self.cell)
            .and_then(|keyring| keyring.issued());
        let list = issued.as_deref().unwrap_or_default();
        let serials = match chosen(&self.which, list, (self.serial, self.but_newest))? {
            Chosen::Listed(lines) if lines.is_empty() => {
                issued?;
                let text = format!("no credential of the name {} to revoke", self.which);
                return Err(Failure::new(NOT_FOUND, text)
                    .hint("`zonal key ls` shows names and serial numbers")
                    .into());
            }
            Chosen::Listed(lines) => {
                let own = self.cell.open().ok().and_then(|cell| cell.credential);
                let own = own.map(|own| own.serial());
                if let Some((line, why)) = lines
                    .iter()
                    .find_map(|line| Some((line, needed(line, own)?)))
                    .filter(|_| !self.force)
                {
                    let text = format!(
                        "the cell needs the credential {} of {}; nothing was revoked",
                        line.serial,
                        line.name()
                    );
                    let hint = format!("without it {why}; --force revokes it anyway");
                    return Err(Failure::new(REFUSED, text).hint(hint).into());
                }
                lines.iter().filter_map(IssuedLine::number).collect()
            }
            Chosen::Unknown(serial) if self.force => vec![serial],
            Chosen::Unknown(_) => {
                // An unreadable list is the better error.
                issued?;
                let text = format!(
                    "no credential of the serial number {} was made; nothing was revoked",
                    self.which
                );
                return Err(Failure::new(NOT_FOUND, text)
                    .hint("`zonal key ls` shows serial numbers; if the list was lost, --force revokes it anyway")
                    .into());
            }
        };
        let request = ManagerRequest::Revoke {
            serials: serials.iter().map(|serial| serial.0).collect(),
        };
        let ManagerReply::Revoked { .. } = ask(&self.cell.open()?, &request)? else {
            let text = "the manager does not confirm that it revoked them";
            return Err(Failure::new(FAILED, text).into());
        };
        for serial in serials {
            console::line(format_args!("revoked {}", shown(serial)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(subject: &str, serial: u64) -> IssuedLine {
        IssuedLine {
            subject: format!("zonal://000102030405060708090a0b0c0d0e0f/{subject}"),
            serial: shown(Serial(serial)),
            expires: 0,
        }
    }

    fn serials(which: &str, issued: &[IssuedLine], how: (bool, bool)) -> Result<Vec<u64>, String> {
        match chosen(which, issued, how) {
            Ok(Chosen::Listed(lines)) => Ok(lines
                .iter()
                .filter_map(|line| Some(line.number()?.0))
                .collect()),
            Ok(Chosen::Unknown(serial)) => Err(format!("unknown {}", shown(serial))),
            Err(failure) => Err(failure.to_string()),
        }
    }

    #[test]
    fn names_and_serial_numbers_are_distinguished() {
        let issued = [
            line("admin/commands", 1),
            line("client/a", 2),
            line("client/a", 3),
            // From a list written before these names were refused.
            line("client/0000000000000002", 4),
            line("client/commands", 5),
            line("server/1?roles=meta", 6),
        ];
        let said = |which: &str, how| serials(which, &issued, how);
        assert_eq!(said("a", (false, false)), Ok(vec![2, 3]));
        assert_eq!(said("a", (false, true)), Ok(vec![2]));
        assert_eq!(said("node 1", (false, false)), Ok(vec![6]));
        assert_eq!(said("0000000000000003", (false, false)), Ok(vec![3]));
        assert_eq!(said("0000000000000002", (true, false)), Ok(vec![2]));
        assert_eq!(said("none", (false, false)), Ok(vec![]));
        for (which, how, part) in [
            ("0000000000000002", (false, false), "the name of others"),
            ("0000000000000003", (false, true), "--but-newest"),
            ("commands", (false, false), "of an administrator"),
            ("commands", (false, true), "of an administrator"),
            ("0000000000000009", (false, false), "unknown"),
            ("a", (true, false), "no serial number"),
        ] {
            let text = said(which, how).unwrap_err();
            assert!(text.contains(part), "{which}: {text}");
        }
    }

    #[test]
    fn credentials_that_the_cell_needs_are_recognized() {
        let own = Some(Serial(7));
        assert!(needed(&line("admin/commands", 1), own).is_some());
        assert!(needed(&line("admin/operator", 7), own).is_some());
        assert!(needed(&line("server/1?roles=meta", 2), own).is_some());
        assert!(needed(&line("admin/operator", 8), own).is_none());
        assert!(needed(&line("client/a", 3), own).is_none());
    }
}

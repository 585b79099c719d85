//! Homes of paths: everything below a first-level directory has its home, so no shard is asked.

use super::{HomedPath, PlacementService, RefusalKind, ServiceRefusal};
use zonal_basics::{const_u32, glob};
use zonal_types::limits::JUNCTIONS_LISTED_MAX;
use zonal_wire::{Junction, ManagerReply, ManagerRequest};

/// Paths that all patterns of one request may match.
pub const MATCHED_PATHS_MAX: usize = 4_096;

impl PlacementService {
    /// Homes of paths. The first name of a path may be a pattern; then each first-level directory
    /// that matches it is an entry. Where a directory has the pattern itself as its name, it alone
    /// is meant.
    pub(super) fn homes(&self, paths: &[String]) -> Result<Vec<HomedPath>, ServiceRefusal> {
        if !self.tells_names {
            let text = "names are for callers with the token: set admin.token_file, or give bytes";
            return Err(ServiceRefusal::new(RefusalKind::Forbidden, text));
        }
        let mut found = Vec::new();
        for path in paths {
            if !path.starts_with('/') {
                let text = format!("path {path} does not start with /");
                return Err(ServiceRefusal::new(RefusalKind::Invalid, text));
            }
            if path.split('/').any(|name| name == "..") {
                let text = format!("path {path} has .. in it: name it without");
                return Err(ServiceRefusal::new(RefusalKind::Invalid, text));
            }
            let first = path
                .split('/')
                .find(|name| !name.is_empty() && *name != ".");
            let first = first.unwrap_or_default();
            let listed = self.junctions(ManagerRequest::JunctionsAt {
                path: format!("/{first}"),
            })?;
            if let Some(junction) = listed.0.first() {
                found.push(HomedPath {
                    path: path.clone(),
                    home: junction.zone.0,
                });
            } else if glob::is_pattern(first.as_bytes()) {
                self.matching(first, path, &mut found)?;
            } else {
                let text = format!("there is no first-level directory /{first}");
                return Err(ServiceRefusal::new(RefusalKind::Missing, text));
            }
            if found.len() > MATCHED_PATHS_MAX {
                let text = format!("more than {MATCHED_PATHS_MAX} paths");
                return Err(ServiceRefusal::new(RefusalKind::Invalid, text));
            }
        }
        Ok(found)
    }

    /// First-level directories whose name matches `pattern`, with the rest of `path` behind them.
    fn matching(
        &self,
        pattern: &str,
        path: &str,
        found: &mut Vec<HomedPath>,
    ) -> Result<(), ServiceRefusal> {
        let rest = path.trim_start_matches('/');
        let rest = rest.strip_prefix(pattern).unwrap_or_default();
        let before = found.len();
        let mut after = None;
        loop {
            let entries = const { const_u32(JUNCTIONS_LISTED_MAX as u64) };
            let request = ManagerRequest::Junctions { after, entries };
            let (junctions, is_end, _) = self.junctions(request)?;
            for junction in &junctions {
                let name = junction.path.trim_start_matches('/');
                if found.len() <= MATCHED_PATHS_MAX
                    && glob::is_of(pattern.as_bytes(), name.as_bytes())
                {
                    found.push(HomedPath {
                        path: format!("{}{rest}", junction.path),
                        home: junction.zone.0,
                    });
                }
            }
            match junctions.into_iter().next_back() {
                Some(last) if !is_end => after = Some((last.path, last.ino)),
                _ => break,
            }
        }
        if found.len() == before {
            let text = format!("no first-level directory matches /{pattern}");
            return Err(ServiceRefusal::new(RefusalKind::Missing, text));
        }
        Ok(())
    }

    /// Junctions, whether the list ends here, and its version.
    pub(super) fn junctions(
        &self,
        request: ManagerRequest,
    ) -> Result<(Vec<Junction>, bool, u64), ServiceRefusal> {
        match self
            .manager
            .serving()
            .map(|manager| manager.handle(request))
        {
            Some(ManagerReply::Junctions {
                version,
                junctions,
                end,
                ..
            }) => Ok((junctions, end, version)),
            _ => Err(ServiceRefusal::new(
                RefusalKind::Unavailable,
                "the manager does not list junctions",
            )),
        }
    }
}

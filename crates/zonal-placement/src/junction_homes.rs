//! Home zones of trees: the zone of the first-level directory that a path begins with.

use std::collections::BTreeMap;
use zonal_types::ZoneId;

/// First-level directories with their home zones.
#[derive(Debug, Default, Clone)]
pub struct JunctionHomes(BTreeMap<String, ZoneId>);

impl JunctionHomes {
    /// Adds a first-level directory, by its path (`/data`).
    pub fn insert(&mut self, path: &str, zone: ZoneId) {
        self.0.insert(path.trim_matches('/').to_owned(), zone);
    }

    /// The home of everything below the path's first-level directory; none for the root itself.
    #[must_use]
    pub fn home(&self, path: &str) -> Option<ZoneId> {
        let first = path.split('/').find(|name| !name.is_empty())?;
        self.0.get(first).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_the_home_of_its_first_level_directory() {
        let mut homes = JunctionHomes::default();
        homes.insert("/data", ZoneId(4));
        assert_eq!(homes.home("/data"), Some(ZoneId(4)));
        assert_eq!(homes.home("//data/a/b/"), Some(ZoneId(4)));
        assert_eq!(homes.home("/database/a"), None);
        assert_eq!(homes.home("/"), None);
    }
}

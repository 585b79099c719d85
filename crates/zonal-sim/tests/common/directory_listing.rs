//! Lists directories like a kernel.

use std::collections::BTreeMap;
use zonal_client::names::ListingPage;
use zonal_sim::workload::{SimClient, who};
use zonal_types::{Attr, ErrorCode, Ino};
use zonal_wire::AttrChange;

/// Names and modes, like a kernel reads them, in parts of 200.
pub async fn listed(
    client: &SimClient,
    dir: Ino,
) -> Result<BTreeMap<String, (u32, Ino)>, ErrorCode> {
    let mut found = BTreeMap::new();
    let mut cookie = 0;
    loop {
        let part = ListingPage::new(cookie, 200, true);
        let (entries, end) = client.begin().readdir(&who(), dir, part).await?;
        for item in &entries {
            let mode = item.entry.attr.map_or(0, |attr: Attr| attr.mode);
            found.insert(item.name.to_string(), (mode & 0o777, item.entry.ino));
            cookie = item.cookie;
        }
        if end {
            return Ok(found);
        }
    }
}

/// Sets the mode of a file.
pub async fn chmod(client: &SimClient, ino: Ino, mode: u32) -> Result<(), ErrorCode> {
    let change = AttrChange {
        mode: Some(mode),
        ..AttrChange::default()
    };
    client
        .begin()
        .setattr(&who(), ino, change)
        .await
        .map(|_attr| ())
}

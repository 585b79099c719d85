//! Texts for people: the consequence of each kind of finding, and its repair.

/// The consequence of a finding with this name.
pub(super) fn consequence(name: &str) -> &'static str {
    match name {
        "store-missing" | "store-stranger" => "everything that only this store has is out of reach",
        "identity" | "starts" | "index-shut" | "log-bit" => {
            "the store is refused at the next start"
        }
        "log-lost" => {
            "the newest changes of this store are lost, and it is refused at the next start"
        }
        "log-torn" => {
            "names and bytes are as they were before the changes in the unreadable part; the store is refused at the next start"
        }
        "index-lost" => "everything in this store is lost, except what its log still has",
        "index-from-copy" => {
            "reads of it fail, or the store is refused at the next start; nothing is lost. The rest of the cell was not compared"
        }
        "index-copy" => {
            "none as long as the index is sound; later damage to the index would lose this part"
        }
        "index-bit" => "a part of the index may be refused when it is read",
        "index-page" | "index-entry" => "this part is lost: names, inodes or places of bytes",
        "foreign-file" => "none",
        "segment" => "reads of the bytes in it are errors",
        "shard-key" => "the value is lost; reads of it are errors",
        "entry-place" => "the name is listed and cannot be opened",
        "entry-no-directory" => "the files and directories of the entries cannot be reached",
        "entry-nowhere" => "the name cannot be opened or removed",
        "entry-type" => "listings show a wrong type",
        "directory-parent" => "`..` leads to the wrong directory",
        "inode-no-name" => "it cannot be reached, and its space is never freed",
        "directory-names" => "removing one name removes the directory under the other",
        "directory-cycle" => "the directories cannot be reached, and walks below them never end",
        "directory-counts" => "an empty directory cannot be removed, or a full one can",
        "inode-links" => "bytes are freed too early, or never",
        "orphan" | "inode-remains" => "space is never freed",
        "detached" => "the directory may be removed by itself",
        "deletion" => "the bytes of a live file are deleted at the next start",
        "inode-bytes" => "`du` shows wrong numbers, or a file that grows shows old bytes",
        "inode-xattrs" => "attributes or access lists are overlooked",
        "inode-numbers" => "a number is given twice: two files become one",
        "data-numbers" => "a number is given twice: two files share their bytes",
        "data-inode" => {
            "clients that are restricted to a path cannot use the bytes; reports show no name, or a wrong one, for them"
        }
        "target-key" => "reads of these bytes are errors",
        "target-note" | "allocation" | "unit-outside" => {
            "live bytes may be overwritten, or space is missing"
        }
        "target-geometry" => "the target does not start",
        "unit-twice" => "two files share bytes: one of them reads errors",
        "object-header" => "these bytes cannot be read",
        "object-blocks" | "object-count" => "`du` and `df` show wrong numbers",
        "allocated" => {
            "`du` shows a wrong number; where fewer bytes are found than counted, the last writes before a crash may be missing"
        }
        "object-deletion" => "a live object is deleted, or a deleted one stays",
        "junction" => "a first-level directory cannot be reached, or is not where the map says",
        "map-lost" => "the cell does not start",
        "object-no-inode" => "space is never freed; the bytes have no name",
        "object-misplaced" => "space is never freed, or bytes are not found",
        "data-shared" => "a write to one file changes the other",
        "layout" => "the file cannot be read or written",
        "shrinks" => "writes to the file are refused for ever",
        "data-behind-size" => "bytes written before a crash and never flushed are not seen",
        "copies-differ" => "readers get one or the other contents, by the copy that they ask",
        "lost-with-target" | "damaged" | "known-lost" => "reads of these bytes are errors",
        _ => "unknown",
    }
}

/// The repair of a finding with this name.
pub(super) fn repair(name: &str) -> &'static str {
    match name {
        "store-missing" | "store-stranger" | "map-lost" | "target-geometry" => {
            "none: bring the right store back, or restore a backup"
        }
        "starts" => "written anew from the manager's record",
        "identity" => "written anew from the configuration and the log",
        "log-lost" | "log-torn" | "log-bit" => {
            "readable records go into the index; the log begins anew"
        }
        "index-lost" => "made anew from the log and from the readable part of the file",
        "index-from-copy" => "the index is made anew from its copy, as it was",
        "index-copy" => "removed; the store begins another",
        "index-shut" | "index-bit" | "index-page" | "index-entry" => {
            "the index is written anew from its readable part"
        }
        "foreign-file" | "known-lost" | "lost-with-target" => "none",
        "segment" => "made anew; its bytes are marked as lost",
        "shard-key" => "removed",
        "entry-place" => "moved to the place where look-ups find it",
        "entry-no-directory" => "the directory is made anew, or its files get names in lost+found",
        "entry-nowhere" => "removed; a directory whose entries are left is made anew",
        "entry-type" | "directory-parent" | "directory-counts" | "inode-links" | "inode-xattrs"
        | "allocated" | "object-blocks" | "object-count" => "corrected",
        "inode-no-name" => "gets a name in lost+found",
        "directory-names" => "the other entry is removed",
        "directory-cycle" => "cut; the directories get a name in lost+found",
        "orphan" | "detached" | "object-deletion" => "mark and record are made to agree",
        "deletion" => "taken back",
        "inode-bytes" => "cut to the file's size",
        "inode-remains" => "bytes get a name in lost+found, other records are removed",
        "inode-numbers" | "data-numbers" => "numbers that may be in use are skipped",
        "data-inode" => "made to lead to the inode that has the bytes, or removed",
        "target-key" => "marked as lost: errors until written anew",
        "target-note" | "allocation" => "counted anew",
        "unit-outside" => "marked as lost: errors until written anew",
        "unit-twice" => {
            "the object whose checksum fits keeps the unit; others get a copy, or are marked as lost"
        }
        "object-header" => "made anew from the object's chunks",
        "junction" => "entry, directory and map are made to agree",
        "object-no-inode" => "becomes a file in lost+found",
        "object-misplaced" => "a copy is removed; the only one is left alone",
        "data-shared" => "none: copy one file and remove it",
        "layout" => "none",
        "shrinks" | "data-behind-size" => "the inode takes over the value of its objects",
        "copies-differ" => {
            "the other copies are noted as missing: their targets fill them once the cell runs"
        }
        "damaged" => "marked as lost: errors until written anew",
        _ => "unknown",
    }
}

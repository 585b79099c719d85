//! The mirror of the root against a manager and a root's shard that answer from memory.

use super::*;
use zonal_types::{Scope, ZoneId};

/// The root's shard and the manager, as far as a round asks them.
struct Root {
    version: u64,
    junctions: Vec<Junction>,
    attr: Attr,
    acl: Option<Blob>,
    asked: Vec<&'static str>,
}

impl Root {
    fn new(names: &[&str]) -> Self {
        let junctions = (100..).zip(names).map(|(ino, name)| Junction {
            ino: Ino(ino),
            path: format!("/{name}"),
            zone: ZoneId(1),
        });
        let mut junctions: Vec<Junction> = junctions.collect();
        junctions.sort_by(|one, other| one.path.cmp(&other.path));
        let attr = Attr {
            ino: Ino::ROOT,
            mode: 0o755,
            uid: 7,
            gid: 8,
            ..sample_root()
        };
        Self {
            version: 3,
            junctions,
            attr,
            acl: None,
            asked: Vec::new(),
        }
    }

    fn answer(&mut self, question: RootRequest) -> RootReply {
        match question {
            RootRequest::Manager(ManagerRequest::Junctions { after, entries }) => {
                self.asked.push(if entries == 0 { "head" } else { "page" });
                let behind = self.junctions.iter().filter(|junction| {
                    let at = Some((junction.path.clone(), junction.ino));
                    after.is_none() || at > after
                });
                let listed: Vec<Junction> = behind.take(entries as usize).cloned().collect();
                let end = listed.last() == self.junctions.last();
                RootReply::Manager(ManagerReply::Junctions {
                    version: self.version,
                    count: self.junctions.len() as u64,
                    junctions: listed,
                    end,
                })
            }
            RootRequest::Shard(MetaRequest::GetAttr { .. }) => {
                self.asked.push("attr");
                RootReply::Shard(MetaReply::Attr {
                    attr: self.attr,
                    data: None,
                    attr_ms: 0,
                })
            }
            RootRequest::Shard(MetaRequest::GetXattr { .. }) => {
                self.asked.push("acl");
                RootReply::Shard(match &self.acl {
                    Some(acl) => MetaReply::Text { text: acl.clone() },
                    None => MetaReply::Failed {
                        code: ErrorNumber(ErrorCode::NoData),
                    },
                })
            }
            other => panic!("{other:?}"),
        }
    }

    fn refresh(&mut self, mirror: &mut RootMirror, now: Instant) -> Vec<&'static str> {
        let mut fetch = RootFetch::new(mirror, now);
        loop {
            let answer = self.answer(fetch.question());
            if let Some(next) = fetch.take(answer).unwrap() {
                *mirror = next;
                return std::mem::take(&mut self.asked);
            }
        }
    }
}

fn sample_root() -> Attr {
    let time = zonal_types::Timestamp::default();
    Attr {
        ino: Ino::ROOT,
        kind: FileKind::Directory,
        mode: 0o755,
        nlink: 2,
        uid: 0,
        gid: 0,
        size: 0,
        allocated: 0,
        rdev: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        change: 1,
        xattrs: 0,
    }
}

fn user(uid: u32) -> Credentials {
    Credentials {
        uid,
        gid: uid,
        groups: Vec::new(),
    }
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn look(mirror: &RootMirror, from: Option<&Holder>, who: u32, text: &str) -> MetaReply {
    let request = MetaRequest::MirroredName {
        who: user(who),
        name: name(text),
    };
    mirror
        .answer(from, &request, Instant(5_000_000_000))
        .unwrap()
}

fn found(reply: MetaReply) -> Option<Ino> {
    let MetaReply::MirroredNames { entries, .. } = reply else {
        panic!("{reply:?}");
    };
    entries.first().map(|item| item.entry.ino)
}

fn failed(code: ErrorCode) -> MetaReply {
    MetaReply::Failed {
        code: ErrorNumber(code),
    }
}

fn list(mirror: &RootMirror, from: Option<&Holder>, page: u32) -> Vec<(String, u64)> {
    let (mut listed, mut cookie) = (Vec::new(), 0);
    loop {
        let request = MetaRequest::MirroredNames {
            who: user(0),
            cookie,
            entries: page,
        };
        let reply = mirror.answer(from, &request, Instant(0)).unwrap();
        let MetaReply::MirroredNames { entries, end, .. } = reply else {
            panic!("{reply:?}");
        };
        let items = entries.iter();
        listed.extend(items.map(|item| (item.name.to_string(), item.cookie)));
        cookie = listed.last().map_or(cookie, |(_, cookie)| *cookie);
        if end {
            return listed;
        }
    }
}

#[test]
fn a_quiet_round_has_two_questions() {
    let mut mirror = RootMirror::default();
    assert_eq!(look(&mirror, None, 0, "a"), failed(ErrorCode::NotFound));
    let mut root = Root::new(&["a", "b"]);
    assert_eq!(
        root.refresh(&mut mirror, Instant(0)),
        ["head", "page", "attr"]
    );
    assert_eq!(root.refresh(&mut mirror, Instant(1)), ["head", "attr"]);
    root.version = 4;
    root.junctions.pop();
    root.attr.change = 2;
    assert_eq!(found(look(&mirror, None, 0, "b")), Some(Ino(101)));
    assert_eq!(
        root.refresh(&mut mirror, Instant(2)),
        ["head", "page", "attr"]
    );
    assert_eq!(found(look(&mirror, None, 0, "b")), None);
    assert_eq!(found(look(&mirror, None, 0, "a")), Some(Ino(100)));
}

#[test]
fn a_long_list_comes_in_pages_and_in_the_order_of_the_roots_cookies() {
    let names: Vec<String> = (0..1_300).map(|number| format!("dir{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut root = Root::new(&names);
    let mut mirror = RootMirror::default();
    let asked = root.refresh(&mut mirror, Instant(0));
    assert_eq!(asked, ["head", "page", "page", "page", "attr"]);
    assert_eq!(mirror.names(), 1_300);
    let listed = list(&mirror, None, 100);
    assert_eq!(listed.len(), 1_300);
    assert!(listed.is_sorted_by_key(|(_, cookie)| *cookie));
    for (text, cookie) in listed {
        assert_eq!(cookie, name_cookie(text.as_bytes(), HASH_BITS));
    }
    // A change while it is listed ends the round.
    let mut fetch = RootFetch::new(&RootMirror::default(), Instant(0));
    for _ in 0..2 {
        let answer = root.answer(fetch.question());
        assert!(fetch.take(answer).unwrap().is_none());
    }
    root.version += 1;
    let answer = root.answer(fetch.question());
    assert_eq!(fetch.take(answer).unwrap_err(), ErrorCode::NotReady);
}

#[test]
fn names_that_are_shown_escaped_are_found_by_their_bytes() {
    let mut root = Root::new(&[r"a\\b", r"\xff\x0a"]);
    let mut mirror = RootMirror::default();
    root.refresh(&mut mirror, Instant(0));
    assert_eq!(mirror.first_level(&name("a\\b")), Some(Ino(100)));
    let odd = Name::new(b"\xff\n").unwrap();
    assert_eq!(mirror.first_level(&odd), Some(Ino(101)));
}

#[test]
fn the_roots_mode_and_acl_decide_who_reads_names() {
    let mut root = Root::new(&["a"]);
    root.attr.mode = 0o750;
    let mut mirror = RootMirror::default();
    root.refresh(&mut mirror, Instant(0));
    assert_eq!(found(look(&mirror, None, 7, "a")), Some(Ino(100)));
    assert_eq!(found(look(&mirror, None, 8, "a")), Some(Ino(100)));
    assert_eq!(look(&mirror, None, 9, "a"), failed(ErrorCode::Access));
    // rwx for the owner, --x for user 9, r-x for the group, mask r-x, nothing for others.
    let lines = [
        (1, 7, u32::MAX),
        (2, 1, 9),
        (4, 5, u32::MAX),
        (16, 5, u32::MAX),
        (32, 0, u32::MAX),
    ];
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in lines {
        acl.extend(u16::to_le_bytes(tag));
        acl.extend(u16::to_le_bytes(perm));
        acl.extend(u32::to_le_bytes(id));
    }
    root.acl = Some(Blob(acl));
    (root.attr.xattrs, root.attr.change) = (ACL_ACCESS, 2);
    let asked = root.refresh(&mut mirror, Instant(0));
    assert_eq!(asked, ["head", "attr", "acl"]);
    assert_eq!(root.refresh(&mut mirror, Instant(0)), ["head", "attr"]);
    assert_eq!(found(look(&mirror, None, 9, "a")), Some(Ino(100)));
    let request = MetaRequest::MirroredNames {
        who: user(9),
        cookie: 0,
        entries: 10,
    };
    let reply = mirror.answer(None, &request, Instant(0)).unwrap();
    assert_eq!(reply, failed(ErrorCode::Access), "search is not reading");
    let request = MetaRequest::MirroredRoot {
        who: user(9),
        mask: 0,
    };
    let reply = mirror.answer(None, &request, Instant(2_000_000)).unwrap();
    let MetaReply::MirroredRoot { attr, acl, .. } = reply else {
        panic!("{reply:?}");
    };
    assert_eq!((attr, acl), (root.attr, root.acl));
}

#[test]
fn a_client_with_a_path_sees_only_where_its_path_begins() {
    let mut root = Root::new(&["a", "b"]);
    let mut mirror = RootMirror::default();
    root.refresh(&mut mirror, Instant(0));
    let holder = Holder {
        subject: String::new(),
        scope: Some(Scope {
            path: vec![name("a"), name("inside")],
            squashes_root: true,
            ..Scope::default()
        }),
    };
    let from = Some(&holder);
    assert_eq!(found(look(&mirror, from, 9, "a")), Some(Ino(100)));
    assert_eq!(look(&mirror, from, 9, "b"), failed(ErrorCode::NotFound));
    let listed = list(&mirror, from, 1);
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].0, "a");
    // Root counts as nobody for it.
    root.attr.mode = 0o700;
    root.attr.change = 2;
    root.refresh(&mut mirror, Instant(0));
    assert_eq!(look(&mirror, from, 0, "a"), failed(ErrorCode::Access));
}

#[test]
fn the_number_of_names_is_bounded() {
    let names: Vec<String> = (0..ROOT_MIRROR_NAMES_MAX + 600)
        .map(|number| format!("{number:06}"))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut fetch = RootFetch::new(&RootMirror::default(), Instant(0));
    let mut root = Root::new(&names);
    let head = root.answer(fetch.question());
    fetch.take(head).unwrap();
    let mut pages = root.junctions.chunks(JUNCTIONS_LISTED_MAX);
    while let RootRequest::Manager(_) = fetch.question() {
        let page = pages.next().unwrap().to_vec();
        let answer = ManagerReply::Junctions {
            version: 3,
            count: 0,
            junctions: page,
            end: false,
        };
        fetch.take(RootReply::Manager(answer)).unwrap();
    }
    let answer = root.answer(fetch.question());
    let mirror = fetch.take(answer).unwrap().unwrap();
    assert_eq!(mirror.names(), ROOT_MIRROR_NAMES_MAX);
    assert!(mirror.first_level(&name("099999")).is_some());
    assert!(mirror.first_level(&name("100000")).is_none());
}

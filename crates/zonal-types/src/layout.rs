//! Data types of a layout; `zonal-layout` has the arithmetic.

use crate::codec::{Codec, CodecError, Reader};
use crate::ids::{Column, DataId, LayoutGen, MapVersion, StripeSetId, TargetId, ZoneId};
use crate::limits::{COPIES_MAX, STRIPE_UNIT_DEFAULT, STRIPE_UNIT_MAX, STRIPE_UNIT_MIN};
use crate::{codec_enum, codec_struct};

codec_struct! {
    /// How new files of a directory are laid out.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct StripePolicy {
        /// Bytes per object in a row; a power of two times 64 KiB, to 64 MiB.
        unit: u32,
        /// Objects in a row; 0 means all targets of the zone.
        count: u16,
        /// Redundancy of new files.
        redundancy: Redundancy,
        /// Servers of new files.
        placement: Placement,
    }
}

codec_enum! {
    /// Servers over which new files are striped.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Placement {
        /// The targets of the directory's zone.
        Zone = 0,
        /// Targets of all zones, in turn: the classic parallel file system.
        Cell = 1,
        /// One target of the node on which the file is created, else one of the directory's zone:
        /// the classic Internet-scale file system.
        Node = 2,
    }
}

impl Placement {
    /// The word for it in commands and attributes.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Zone => "zone",
            Self::Cell => "cell",
            Self::Node => "node",
        }
    }

    /// The placement with this word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        let mut all = [Self::Zone, Self::Cell, Self::Node].into_iter();
        all.find(|placement| placement.word() == word)
    }
}

impl Default for StripePolicy {
    fn default() -> Self {
        Self {
            unit: STRIPE_UNIT_DEFAULT,
            count: 0,
            redundancy: Redundancy::None,
            placement: Placement::Zone,
        }
    }
}

impl StripePolicy {
    /// True where the unit is a power of two, and it and the number of copies are within their
    /// bounds.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.unit.is_power_of_two()
            && (STRIPE_UNIT_MIN..=STRIPE_UNIT_MAX).contains(&self.unit)
            && (1..=COPIES_MAX).contains(&self.redundancy.zone_copies())
    }
}

codec_enum! {
    /// How a file survives the loss of targets.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Redundancy {
        /// A lost target loses its columns.
        None = 0,
        /// Each column has several objects on different nodes.
        Copies = 1 {
            /// Objects of a column, 2 to `COPIES_MAX`. A component with one has objects that lie in
            /// other slots than the computed ones.
            copies: u16,
            /// Slots from one copy of a column to the next; 0 in a policy, where no set is chosen.
            step: u16,
        },
        /// As `Copies`, and one more object of each column in another zone.
        AlsoZone = 2 {
            /// Objects of a column in the file's own zone, 1 to `COPIES_MAX`.
            copies: u16,
            /// As in `Copies`; 0 with one copy.
            step: u16,
            /// The other zone; [`ZoneId::CELL`] in a policy: any.
            zone: ZoneId,
            /// The stripe set there; 0 in a policy.
            set: StripeSetId,
            /// The number of that object among those of its column, from 1.
            at: u16,
        },
    }
}

impl Redundancy {
    /// Objects of a column.
    #[must_use]
    pub fn copies(self) -> u16 {
        match self {
            Self::None => 1,
            Self::Copies { copies, .. } => copies,
            Self::AlsoZone { copies, .. } => copies.saturating_add(1),
        }
    }

    /// Objects of a column in the file's own zone.
    #[must_use]
    pub fn zone_copies(self) -> u16 {
        match self {
            Self::None => 1,
            Self::Copies { copies, .. } | Self::AlsoZone { copies, .. } => copies,
        }
    }

    /// The other zone with a copy, and the stripe set there.
    #[must_use]
    pub fn also_zone(self) -> Option<(ZoneId, StripeSetId)> {
        match self {
            Self::None | Self::Copies { .. } => None,
            Self::AlsoZone { zone, set, .. } => Some((zone, set)),
        }
    }

    /// Slots from one copy of a column to the next in the file's own zone; 0 with one copy.
    #[must_use]
    pub fn step(self) -> u16 {
        match self {
            Self::None => 0,
            Self::Copies { step, .. } | Self::AlsoZone { step, .. } => step,
        }
    }

    /// The same with a copy in a set of another zone, behind the others.
    #[must_use]
    pub fn with_also_zone(self, zone: ZoneId, set: StripeSetId) -> Self {
        let copies = self.zone_copies();
        Self::AlsoZone {
            copies,
            step: self.step(),
            zone,
            set,
            at: copies,
        }
    }

    /// The same with this number of copies in the file's own zone. New ones come behind the others.
    #[must_use]
    pub fn with_zone_copies(self, copies: u16, step: u16) -> Self {
        match self {
            Self::AlsoZone { zone, set, at, .. } => Self::AlsoZone {
                copies,
                step,
                zone,
                set,
                at,
            },
            Self::None | Self::Copies { .. } => Self::Copies { copies, step },
        }
    }

    /// The same with fewer copies: the first ones. `copies`: those in the file's own zone. `also`:
    /// with the one in another zone. `None` where a copy goes that is before one that stays.
    #[must_use]
    pub fn lowered(self, copies: u16, also: bool) -> Option<Self> {
        let step = if copies > 1 { self.step() } else { 0 };
        match self {
            Self::AlsoZone { at, .. } if also => {
                (at <= copies).then(|| self.with_zone_copies(copies, step))
            }
            Self::AlsoZone { at, .. } => (at >= copies).then_some(Self::Copies { copies, step }),
            Self::None | Self::Copies { .. } => Some(Self::Copies { copies, step }),
        }
    }

    /// The redundancy of a policy with this number of objects of a column, where that is allowed.
    #[must_use]
    pub fn of_copies(copies: u16) -> Option<Self> {
        match copies {
            1 => Some(Self::None),
            2..=COPIES_MAX => Some(Self::Copies { copies, step: 0 }),
            _ => None,
        }
    }
}

codec_enum! {
    /// The kind of a component. Clones, re-striping and shared disks will add kinds.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ComponentKind {
        /// Round robin over the columns, one stripe unit each.
        Striped = 1,
        /// As `Striped`, but the file's first bytes are in its shard's store; the objects have a
        /// hole there.
        StripedInline = 2 {
            /// Number of those bytes.
            bytes: u32,
        },
    }
}

codec_enum! {
    /// How far a relocation is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RelocationState {
        /// Its target fills the new place. Reads use the place before; changes go to both.
        Filling = 1,
        /// Reads use the new place. Changes go to both, while the slot before serves.
        Filled = 2,
        /// The object lies in the new place alone.
        Settled = 3,
        /// The object is new, at its only place, which its target fills.
        Missing = 4,
        /// The object has left the place, or never got there: what lies there is to be deleted.
        Leftover = 5,
        /// The object goes, with its copy. It is not read. It gets each change, and is marked where
        /// it misses one.
        Leaving = 6,
        /// As `Leaving`, and its target serves no client that may read it.
        Unread = 7,
        /// The object is gone from its component. Its bytes there still count as the file's.
        Dropped = 8,
    }
}

impl RelocationState {
    /// True where a target has yet to fill the object.
    #[must_use]
    pub fn is_filled_now(self) -> bool {
        matches!(self, Self::Filling | Self::Missing)
    }

    /// True where the target of the record's place has something to do.
    #[must_use]
    pub fn is_unfinished(self) -> bool {
        self.is_filled_now() || self.is_left() || self.is_leaving()
    }

    /// True for the one record of an object that is on its way.
    #[must_use]
    pub fn is_under_way(self) -> bool {
        matches!(self, Self::Filling | Self::Filled | Self::Missing) || self.is_leaving()
    }

    /// True where the object's copy goes.
    #[must_use]
    pub fn is_leaving(self) -> bool {
        matches!(self, Self::Leaving | Self::Unread)
    }

    /// True where no object of the component is at the record's place.
    #[must_use]
    pub fn is_left(self) -> bool {
        matches!(self, Self::Leftover | Self::Dropped)
    }
}

codec_struct! {
    /// An object that lies, or shall lie, in another slot than the computed one.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Relocation {
        /// Number of the object.
        object: Column,
        /// Set of the new place.
        set: StripeSetId,
        /// Slot of the new place.
        slot: u16,
        /// How far it is.
        state: RelocationState,
        /// The map by which the shard made the record, or last changed it.
        as_of: MapVersion,
    }
}

/// A range of a file and where it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Component {
    /// Its kind.
    pub kind: ComponentKind,
    /// First byte of the file in the range.
    pub start: u64,
    /// First byte behind the range (`u64::MAX`: to the end).
    pub end: u64,
    /// Identity of the stored bytes.
    pub data_id: DataId,
    /// Zone of the set, [`ZoneId::CELL`] for a set over all zones: an index for `locate`. The
    /// set is the authority.
    pub zone: ZoneId,
    /// The stripe set that holds it.
    pub set: StripeSetId,
    /// Slot of the set that column 0 lies on; column c lies on (start + c) mod width.
    pub start_column: Column,
    /// Objects in a row.
    pub count: u16,
    /// Bytes per object in a row.
    pub unit: u32,
    /// Bytes of the file per span of sets (0: one span). Reserved for redundancy.
    pub span: u64,
    /// Redundancy.
    pub redundancy: Redundancy,
    /// Objects that lie elsewhere: for each at most one `Settled` record, and at most one that is
    /// under way. `Dropped` and `Leftover` records are of places that have no more than bytes to
    /// delete. The numbers of their objects may be those of copies that the component had before.
    /// A component without redundancy does not store this.
    pub relocations: Vec<Relocation>,
}

impl Component {
    /// Its stripe set, and that of its copy in another zone.
    pub fn sets(&self) -> impl Iterator<Item = StripeSetId> + use<> {
        let other = self.redundancy.also_zone().map(|(_, set)| set);
        std::iter::once(self.set).chain(other)
    }
}

impl Codec for Component {
    fn put(&self, out: &mut Vec<u8>) {
        self.kind.put(out);
        self.start.put(out);
        self.end.put(out);
        self.data_id.put(out);
        self.zone.put(out);
        self.set.put(out);
        self.start_column.put(out);
        self.count.put(out);
        self.unit.put(out);
        self.span.put(out);
        self.redundancy.put(out);
        if self.redundancy != Redundancy::None {
            self.relocations.put(out);
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, CodecError> {
        let mut component = Self {
            kind: Codec::get(from)?,
            start: Codec::get(from)?,
            end: Codec::get(from)?,
            data_id: Codec::get(from)?,
            zone: Codec::get(from)?,
            set: Codec::get(from)?,
            start_column: Codec::get(from)?,
            count: Codec::get(from)?,
            unit: Codec::get(from)?,
            span: Codec::get(from)?,
            redundancy: Codec::get(from)?,
            relocations: Vec::new(),
        };
        if component.redundancy != Redundancy::None {
            component.relocations = Codec::get(from)?;
        }
        Ok(component)
    }
}

/// The placement of a file's bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layout {
    /// Rises with each change.
    pub layout_gen: LayoutGen,
    /// Sorted by start, without overlap. Empty for an inode without data.
    pub components: Vec<Component>,
    /// Targets whose copies of the file are stale, in rising order: they miss changes. Each column
    /// has a copy on another target. Only a layout with copies stores this.
    pub stale: Vec<TargetId>,
}

impl Codec for Layout {
    fn put(&self, out: &mut Vec<u8>) {
        self.layout_gen.put(out);
        self.components.put(out);
        if self.has_copies() {
            self.stale.put(out);
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, CodecError> {
        let mut layout = Self {
            layout_gen: Codec::get(from)?,
            components: Codec::get(from)?,
            stale: Vec::new(),
        };
        if layout.has_copies() {
            layout.stale = Codec::get(from)?;
        }
        Ok(layout)
    }
}

impl Layout {
    /// True where a column of the file has several objects, or an object lies elsewhere than
    /// computed.
    #[must_use]
    pub fn has_copies(&self) -> bool {
        let mut components = self.components.iter();
        components.any(|component| component.redundancy != Redundancy::None)
    }

    /// The relocations of all components.
    pub fn relocations(&self) -> impl Iterator<Item = &Relocation> {
        let components = self.components.iter();
        components.flat_map(|component| &component.relocations)
    }

    /// True where a target has yet to fill something of the file, or to delete it.
    #[must_use]
    pub fn is_unfinished(&self) -> bool {
        !self.stale.is_empty() || self.relocations().any(|of| of.state.is_unfinished())
    }

    /// The data ids of the file, one for each component.
    pub fn data_ids(&self) -> impl Iterator<Item = DataId> + '_ {
        self.components.iter().map(|component| component.data_id)
    }

    /// True where a target's copies of the file miss changes.
    #[must_use]
    pub fn is_stale(&self, target: TargetId) -> bool {
        self.stale.binary_search(&target).is_ok()
    }

    /// Number of the file's first bytes that its shard stores.
    #[must_use]
    pub fn inline_bytes(&self) -> u32 {
        match self.components.first().map(|component| component.kind) {
            Some(ComponentKind::StripedInline { bytes }) => bytes,
            Some(ComponentKind::Striped) | None => 0,
        }
    }
}

/// Data that a client needs besides the attributes to read and write a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileData {
    /// Placement of the bytes.
    pub layout: Layout,
    /// The map by which the shard gave the layout: it has the marks of all outages up to there.
    /// Only with copies.
    pub as_of: MapVersion,
    /// Number of the last truncation.
    pub truncate_seq: u64,
    /// Size that the last truncation left; a target that has not seen `truncate_seq` truncates to
    /// it first.
    pub truncate_size: u64,
}

impl Codec for FileData {
    fn put(&self, out: &mut Vec<u8>) {
        self.layout.put(out);
        if self.layout.has_copies() {
            self.as_of.put(out);
        }
        self.truncate_seq.put(out);
        self.truncate_size.put(out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, CodecError> {
        let layout: Layout = Codec::get(from)?;
        let as_of = match layout.has_copies() {
            true => Codec::get(from)?,
            false => MapVersion(0),
        };
        Ok(Self {
            layout,
            as_of,
            truncate_seq: Codec::get(from)?,
            truncate_size: Codec::get(from)?,
        })
    }
}

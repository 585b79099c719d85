//! Sizes in bytes: the names of the binary units, and a rounded size for people. A size that must
//! parse back has its exact form in the configs' units (zonal-server), made of the same table.

/// Binary units with their bytes, the smallest first.
pub const BINARY_UNITS: [(&str, u64); 6] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
];

/// A number of bytes for people, with one digit behind the point: `9.8 GiB`.
#[must_use]
pub fn rounded(bytes: u64) -> String {
    let mut shown = bytes as f64;
    let mut unit = 0;
    while shown >= 1024.0 && unit + 1 < BINARY_UNITS.len() {
        shown /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{shown:.1} {}", BINARY_UNITS[unit].0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounded_sizes_are_readable() {
        assert_eq!(rounded(0), "0 B");
        assert_eq!(rounded(1536), "1.5 KiB");
        assert_eq!(rounded(10 << 30), "10.0 GiB");
        assert_eq!(rounded(u64::MAX), "16384.0 PiB");
    }

    #[test]
    fn each_unit_is_1024_of_the_one_before() {
        for pair in BINARY_UNITS.windows(2) {
            assert_eq!(pair[1].1, 1024 * pair[0].1);
        }
    }
}

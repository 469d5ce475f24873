//! How much memory the process may take: the machine's, or what its control groups leave it, as a container's limit or systemd's `MemoryMax`.

use std::path::Path;

/// Where nothing can be told.
const UNKNOWN: u64 = 1 << 30;

/// Bytes of memory that this process may take.
pub fn available() -> u64 {
    bound(
        Path::new("/proc/meminfo"),
        Path::new("/proc/self/cgroup"),
        Path::new("/sys/fs/cgroup"),
    )
}

fn bound(meminfo: &Path, own: &Path, groups: &Path) -> u64 {
    let machine = std::fs::read_to_string(meminfo).ok();
    let machine = machine.and_then(|text| total(&text)).unwrap_or(UNKNOWN);
    let own = std::fs::read_to_string(own).unwrap_or_default();
    limits(&own, groups).fold(machine, u64::min)
}

fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// The limits of the process's control group and of those that it is in. Only version 2 has one tree for everything, without a name (`0::/path`).
fn limits(own: &str, groups: &Path) -> impl Iterator<Item = u64> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let path = groups.join(path.unwrap_or_default());
    let all: Vec<_> = path
        .ancestors()
        .take_while(|group| group.starts_with(groups))
        .map(|group| group.join("memory.max"))
        .collect();
    // Those that say `max`, or nothing, bound nothing.
    all.into_iter()
        .filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_least_bound_counts() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let (meminfo, own, groups) = (root.join("meminfo"), root.join("own"), root.join("groups"));
        let service = groups.join("system.slice/warren.service");
        fs::create_dir_all(&service).unwrap();
        let now = || bound(&meminfo, &own, &groups);
        assert_eq!(now(), UNKNOWN);
        fs::write(&meminfo, "MemFree: 5 kB\nMemTotal:       4096 kB\n").unwrap();
        assert_eq!(now(), 4096 * 1024);
        fs::write(&own, "0::/system.slice/warren.service\n").unwrap();
        fs::write(service.join("memory.max"), "max\n").unwrap();
        assert_eq!(now(), 4096 * 1024);
        fs::write(groups.join("system.slice/memory.max"), "2097152\n").unwrap();
        assert_eq!(now(), 2_097_152, "a group around it bounds it, too");
        fs::write(service.join("memory.max"), "1048576\n").unwrap();
        assert_eq!(now(), 1_048_576);
        fs::write(&own, "0::/\n").unwrap();
        fs::write(groups.join("memory.max"), "524288\n").unwrap();
        assert_eq!(now(), 524_288, "as seen from within a container");
    }
}

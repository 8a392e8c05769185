//! Counters of the kernel.

use std::io;

pub(crate) use hawser_netem::report::{NetworkTraffic, Traffic};

/// Returns the counters of the devices of this thread's namespace, which is the router's: bytes
/// that a device sends go down.
pub(crate) fn device_counters() -> io::Result<Vec<(String, NetworkTraffic)>> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let device = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let n: Vec<u64> = numbers.split_whitespace().map_while(|n| n.parse().ok()).collect();
        let up = Traffic {
            bytes: *n.first()?,
            packets: *n.get(1)?,
            lost: *n.get(3)?,
        };
        let down = Traffic {
            bytes: *n.get(8)?,
            packets: *n.get(9)?,
            lost: *n.get(11)?,
        };
        Some((name.trim().to_owned(), NetworkTraffic { down, up }))
    };
    Ok(text.lines().filter_map(device).collect())
}

/// Returns TCP's counters of this thread's namespace since its creation: retransmitted segments and
/// segments out of order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TcpCounters {
    pub(crate) retransmitted: u64,
    pub(crate) out_of_order: u64,
}

pub(crate) fn tcp_counters() -> io::Result<TcpCounters> {
    let snmp = std::fs::read_to_string("/proc/thread-self/net/snmp")?;
    let netstat = std::fs::read_to_string("/proc/thread-self/net/netstat")?;
    let multipath = value_of(&netstat, "MPTcpExt:", "OFOQueue").unwrap_or(0);
    Ok(TcpCounters {
        retransmitted: value_of(&snmp, "Tcp:", "RetransSegs").unwrap_or(0),
        out_of_order: value_of(&netstat, "TcpExt:", "TCPOFOQueue").unwrap_or(0) + multipath,
    })
}

/// Parses files that have two lines with the same prefix: names, then values.
fn value_of(text: &str, prefix: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(prefix));
    let index = lines.next()?.split_whitespace().position(|n| n == name)?;
    lines.next()?.split_whitespace().nth(index)?.parse().ok()
}

/// Returns the user and system time of a process; zero if the process has ended. Units: seconds.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may contain anything; the fields after it are numbers (proc(5): 14
    // utime, 15 stime).
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|n| n.parse::<u64>().ok())
        .sum();
    ticks as f64 / hawser_linux::process::ticks_per_second() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_counter_by_its_name() {
        let text = "Ip: A B\nIp: 1 2\nTcp: InSegs RetransSegs\nTcp: 10 3\n";
        assert_eq!(value_of(text, "Tcp:", "RetransSegs"), Some(3));
        assert_eq!(value_of(text, "Tcp:", "Absent"), None);
        assert_eq!(value_of(text, "Udp:", "RetransSegs"), None);
    }

    #[test]
    fn this_process_has_used_the_processor() {
        let mut sum = 0u64;
        while cpu_seconds(std::process::id()) == 0.0 {
            sum = std::hint::black_box(sum + 1);
        }
        assert_eq!(cpu_seconds(u32::MAX), 0.0);
    }
}

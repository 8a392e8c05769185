use super::*;

/// An IPv4 packet of UDP without payload; `flags` are the byte of flags and fragment offset.
fn udp(ecn: u8, flags: u8) -> Vec<u8> {
    let mut packet = vec![0; 28];
    packet[0] = 0x45;
    packet[1] = ecn;
    packet[3] = 28;
    packet[6] = flags;
    packet[8] = 64;
    packet[9] = protocol::UDP;
    packet[12..16].copy_from_slice(&[10, 77, 1, 2]);
    packet[16..20].copy_from_slice(&[203, 0, 113, 2]);
    packet[25] = 8;
    inner::fill_ipv4_checksum(&mut packet, 20);
    packet
}

#[test]
fn reads_what_a_middlebox_needs() {
    for (ecn, codepoint) in [
        (0, Codepoint::NotEct),
        (1, Codepoint::Ect),
        (2, Codepoint::Ect),
        (3, Codepoint::Ce),
    ] {
        let header = header_of(&udp(ecn, 0));
        assert_eq!(
            header,
            Header {
                ip_len: 28,
                is_udp: true,
                ecn: codepoint
            }
        );
    }
    let other = header_of(&[0xff; 40]);
    assert!(!other.is_udp && other.ip_len == 40);
}

#[test]
fn only_packets_that_nobody_may_fragment_are_answered() {
    assert!(is_unfragmentable(&udp(0, 0x40)));
    assert!(!is_unfragmentable(&udp(0, 0)));
    assert!(is_unfragmentable(&[0x60; 40]));
}

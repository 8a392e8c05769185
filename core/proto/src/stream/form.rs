//! Form of a TCP connection that enters the tunnel: a stream, or end-to-end as packets.
//!
//! The client decides once for each connection, by its SYN. The first matching rule decides;
//! without one, the default form applies. A connection of an [interactive service](is_interactive)
//! becomes a stream only by a rule, because a crash of a daemon resets streams, and a person would
//! lose the session.

use hawser_units::Net;
use hawser_wire::inner::FlowKey;

/// Most rules of a client. Source: as rules for deadlines
/// ([`hawser_wire::deadline::MAX_DEADLINE_RULES`]): each is compared with a connection's SYN.
pub const MAX_FORM_RULES: usize = 64;

/// Form of a TCP connection in the tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Packets of the connection are transferred.
    #[default]
    EndToEnd,
    /// Both ends have a TCP of their own, and the bytes between them are a stream.
    Stream,
}

/// Connections of one form. A field that is `None` holds for any connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FormRule {
    /// First and last port of the destination.
    pub ports: Option<(u16, u16)>,
    /// Network of the destination.
    pub to: Option<Net>,
    /// Code point of the SYN.
    pub dscp: Option<u8>,
    /// Form of these connections; `None` for the default form.
    pub form: Option<Form>,
}

impl FormRule {
    fn matches(&self, key: &FlowKey, dscp: u8) -> bool {
        let port = key.destination_port;
        self.ports
            .is_none_or(|(first, last)| (first..=last).contains(&port))
            && self.to.is_none_or(|net| net.contains(key.destination))
            && self.dscp.is_none_or(|own| own == dscp)
    }
}

/// Decides the form of each connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forms {
    /// Form of connections without a matching rule.
    pub unless_ruled: Form,
    /// Rules, of which the first match decides.
    pub rules: Vec<FormRule>,
}

impl Forms {
    /// Returns whether any connection may become a stream.
    #[must_use]
    pub fn may_split(&self) -> bool {
        let is_stream = |rule: &FormRule| rule.form == Some(Form::Stream);
        self.unless_ruled == Form::Stream || self.rules.iter().any(is_stream)
    }

    /// Returns the form of a connection and its reason, as users read it.
    #[must_use]
    pub fn form(&self, key: &FlowKey, dscp: u8) -> (Form, &'static str) {
        let rule = self.rules.iter().find(|rule| rule.matches(key, dscp));
        match (rule.and_then(|rule| rule.form), self.unless_ruled) {
            (Some(Form::Stream), _) => (Form::Stream, "a rule has tcp = \"stream\""),
            (Some(Form::EndToEnd), _) => (Form::EndToEnd, "a rule has tcp = \"end-to-end\""),
            (None, Form::EndToEnd) => (
                Form::EndToEnd,
                "tcp of client.toml is \"end-to-end\", and no rule has tcp = \"stream\" for it",
            ),
            (None, Form::Stream) if is_interactive(key.destination_port) => (
                Form::EndToEnd,
                "its port is that of an interactive service, which a crash of the daemon would end, and no rule has tcp = \"stream\" for it",
            ),
            (None, Form::Stream) => (Form::Stream, "tcp of client.toml is \"stream\""),
        }
    }
}

/// Ports of services whose user loses a session, and not only a request, when a connection is
/// reset: SSH, telnet, rlogin, telnet over TLS, Citrix ICA and its session reliability, Remote
/// Desktop, VNC and SPICE (displays 0 to 99), X11 (displays 0 to 63).
///
/// Source: the registry of service names and ports of IANA (RFC 6335); for displays beyond the
/// first, RFC 6143 section 1 and X(7).
pub const INTERACTIVE_PORTS: [(u16, u16); 9] = [
    (22, 22),
    (23, 23),
    (513, 513),
    (992, 992),
    (1_494, 1_494),
    (2_598, 2_598),
    (3_389, 3_389),
    (5_900, 5_999),
    (6_000, 6_063),
];

/// Returns whether a port is among [`INTERACTIVE_PORTS`].
#[must_use]
pub fn is_interactive(port: u16) -> bool {
    let mut all = INTERACTIVE_PORTS.iter();
    all.any(|(first, last)| (first..=last).contains(&&port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_wire::inner::protocol;

    fn to(address: &str, port: u16) -> FlowKey {
        FlowKey {
            source: "100.96.0.2".parse().expect("an address"),
            destination: address.parse().expect("an address"),
            source_port: 22,
            destination_port: port,
            protocol: protocol::TCP,
        }
    }

    fn rule(form: Option<Form>) -> FormRule {
        FormRule {
            form,
            ..FormRule::default()
        }
    }

    #[test]
    fn interactive_services_stay_whole_unless_a_rule_splits_them() {
        let mut forms = Forms {
            unless_ruled: Form::Stream,
            rules: Vec::new(),
        };
        let form = |forms: &Forms, port| forms.form(&to("203.0.113.2", port), 0).0;
        for port in [22, 23, 513, 992, 1_494, 2_598, 3_389, 5_900, 5_999, 6_000, 6_063] {
            assert_eq!(form(&forms, port), Form::EndToEnd, "{port}");
        }
        for port in [21, 24, 80, 443, 5_899, 6_064, 8_022] {
            assert_eq!(form(&forms, port), Form::Stream, "{port}");
        }
        forms.rules.push(FormRule {
            ports: Some((22, 22)),
            ..rule(Some(Form::Stream))
        });
        assert_eq!(form(&forms, 22), Form::Stream);
        assert_eq!(form(&forms, 23), Form::EndToEnd);
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let net = |text: &str| Some(text.parse().expect("a network"));
        let forms = Forms {
            unless_ruled: Form::EndToEnd,
            rules: vec![
                FormRule {
                    to: net("203.0.113.0/24"),
                    ..rule(None)
                },
                FormRule {
                    dscp: Some(8),
                    ..rule(Some(Form::Stream))
                },
                FormRule {
                    ports: Some((8_000, 8_999)),
                    ..rule(Some(Form::EndToEnd))
                },
                FormRule {
                    to: net("2001:db8::/32"),
                    ..rule(Some(Form::Stream))
                },
            ],
        };
        assert!(forms.may_split());
        let form = |address, port, dscp| forms.form(&to(address, port), dscp);
        assert_eq!(
            form("203.0.113.2", 443, 8).0,
            Form::EndToEnd,
            "an exception before"
        );
        assert_eq!(form("198.51.100.2", 8_080, 8).0, Form::Stream);
        assert_eq!(
            form("198.51.100.2", 8_080, 0),
            (Form::EndToEnd, "a rule has tcp = \"end-to-end\"")
        );
        assert_eq!(
            form("2001:db8::7", 22, 0),
            (Form::Stream, "a rule has tcp = \"stream\"")
        );
        assert_eq!(form("198.51.100.2", 443, 0).0, Form::EndToEnd);
        assert!(!Forms::default().may_split());
    }
}

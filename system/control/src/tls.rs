//! TLS for the control channel: both sides present a raw public key (RFC 7250) and are identified
//! by its hash.
//!
//! There are no certificates: they would contain only the key, and only the invitation vouches for
//! the key. rustls verifies that the peer has the private key; the hash decides about acceptance,
//! on a client immediately, on a hub after the `Hello`.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use ::aws_lc_rs::hmac;
use anyhow::{Context, anyhow};
use hawser_config::identity::{Identity, KeyHash, random};
use hawser_dataplane::{EpochKeys, Role};
use hawser_wire::control::Cipher;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, SignatureScheme,
};
use zeroize::Zeroize;

/// Protocol name in the handshake. QUIC requires one (RFC 9001 section 8.1), and every observer can
/// read it, so it is the most common name. The first message, which is encrypted, states which of
/// Hawser's protocols is used.
const ALPN: &[u8] = b"h3";
/// Name of the hub in the handshake: names are not used, and for an address none is sent (RFC 6066
/// section 3).
pub const SERVER_NAME: &str = "0.0.0.0";
/// Idle timeout of a connection. Source: our choice, three of [`KEEP_ALIVE`], so that two may be
/// lost; a longer one reports a hub that is gone later, but paths have noticed it by then.
const IDLE: Duration = Duration::from_secs(15);
/// Keep-alive interval: it preserves a client's NAT bindings and the connection. Source: a third of
/// [`IDLE`]; RFC 9000 section 10.1.2 needs an interval of at most 30 s.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Assumed round-trip time before the first sample: that of a mobile network. A lost first packet
/// is retransmitted after three of these, and a few unnecessary retransmissions are harmless. The
/// default of 333 ms (RFC 9002 section 6.2.2) makes a hub's restart last a second longer.
pub const FIRST_ROUND_TRIP: Duration = Duration::from_millis(100);

/// Maximum number of handshakes that the library queues until they are examined, which happens at
/// once. Source: our choice, a quarter of `OF_ALL` of `admission.rs`, which decides on them; a
/// smaller one drops hellos in a burst of a restart.
const INCOMING: usize = 1_024;
/// Buffered bytes of a handshake, more than any hello. Source: our choice, a bound on memory; a
/// hello with post-quantum keys has some 2 KB.
const INCOMING_BYTES: u64 = 64 << 10;

/// Returns the QUIC configuration of a client or of a host that moves flows, which accepts only the
/// hub or peer whose key has the hash `hub`.
///
/// # Errors
/// The TLS library refuses its own defaults.
pub fn client_config(identity: &Identity, hub: KeyHash) -> anyhow::Result<quinn::ClientConfig> {
    client_config_for(identity, move |key| key == hub)
}

/// Returns the QUIC configuration of a device that connects to others, which accepts those whose
/// key `is_known`.
///
/// # Errors
/// The TLS library refuses its own defaults.
pub fn client_config_for(
    identity: &Identity,
    is_known: impl Fn(KeyHash) -> bool + Send + Sync + 'static,
) -> anyhow::Result<quinn::ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned {
            is_known: Box::new(is_known),
            provider,
        }))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
            identity.certified.clone(),
        )));
    tls.alpn_protocols = vec![ALPN.to_vec()];
    // Every connection must prove both keys again.
    tls.resumption = rustls::client::Resumption::disabled();
    let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    let mut transport = transport();
    transport.keep_alive_interval(Some(KEEP_ALIVE));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// Returns the QUIC configuration of a hub, or of a host whose flows others move, which accepts
/// every peer that proves its key.
///
/// # Errors
/// The TLS library refuses its own defaults.
pub fn server_config(identity: &Identity) -> anyhow::Result<quinn::ServerConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::new(AnyKey { provider }))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(
            identity.certified.clone(),
        )));
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.send_tls13_tickets = 0;
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    config
        .transport_config(Arc::new(transport()))
        .max_incoming(INCOMING)
        .incoming_buffer_size(INCOMING_BYTES)
        .incoming_buffer_size_total(INCOMING_BYTES * 64);
    Ok(config)
}

/// Creates an endpoint on this socket that accepts connections.
///
/// # Errors
/// If the key or the socket cannot be used.
pub fn listening(identity: &Identity, socket: UdpSocket) -> anyhow::Result<quinn::Endpoint> {
    let (config, server) = (hub_endpoint_config(identity), server_config(identity)?);
    let runtime = Arc::new(quinn::TokioRuntime);
    Ok(quinn::Endpoint::new(config, Some(server), socket, runtime)?)
}

/// Returns a hub's endpoint configuration. The values derived from `identity` are constant across a
/// restart, so clients of the previous process are notified immediately that their connections have
/// ended (RFC 9000 section 10.3).
#[must_use]
pub fn hub_endpoint_config(identity: &Identity) -> quinn::EndpointConfig {
    let reset = hmac::Key::new(hmac::HMAC_SHA256, &identity.derive("hawser stateless reset v1"));
    let mut config = quinn::EndpointConfig::new(Arc::new(reset));
    config.cid_generator(|| Box::new(RandomId));
    // The first bits of a datagram distinguish QUIC from data, so they must not be greased.
    config.grease_quic_bit(false);
    // A restarted hub must notify many clients; the default permits 50 per second.
    config.min_reset_interval(Duration::from_micros(200));
    config
}

/// Returns a client's endpoint configuration.
#[must_use]
pub fn client_endpoint_config() -> quinn::EndpointConfig {
    let mut config = quinn::EndpointConfig::default();
    config.grease_quic_bit(false);
    config
}

/// Returns the key that the peer of an established connection has proven.
///
/// # Errors
/// If the peer has presented none, which the verifiers prevent.
pub fn peer_key(connection: &quinn::Connection) -> anyhow::Result<KeyHash> {
    let identity = connection
        .peer_identity()
        .context("the peer has presented no key")?;
    let keys = identity
        .downcast::<Vec<CertificateDer<'static>>>()
        .map_err(|_| anyhow!("not a TLS key"))?;
    Ok(KeyHash::of(
        keys.first().context("the peer has presented no key")?,
    ))
}

/// Derives the data plane's keys of a session's epoch from a control connection (RFC 8446 section
/// 7.5).
///
/// # Errors
/// If the TLS library cannot export keying material.
pub fn epoch_keys(
    connection: &quinn::Connection,
    session: u64,
    epoch: u8,
    cipher: Cipher,
    role: Role,
) -> anyhow::Result<EpochKeys> {
    let export = |direction: u8| {
        let mut context = [0; 10];
        context[..8].copy_from_slice(&session.to_be_bytes());
        context[8] = epoch;
        context[9] = direction;
        let mut key = [0; 44];
        connection
            .export_keying_material(&mut key, EXPORTER_LABEL, &context)
            .map_err(|_| anyhow!("cannot export keys"))?;
        anyhow::Ok(key)
    };
    let (mut to_hub, mut to_client) = (export(0)?, export(1)?);
    let keys = match role {
        Role::Client => EpochKeys {
            cipher,
            send: to_hub,
            receive: to_client,
        },
        Role::Hub => EpochKeys {
            cipher,
            send: to_client,
            receive: to_hub,
        },
    };
    to_hub.zeroize();
    to_client.zeroize();
    Ok(keys)
}

fn transport() -> quinn::TransportConfig {
    let mut transport = quinn::TransportConfig::default();
    transport
        .max_idle_timeout(Some(quinn::IdleTimeout::try_from(IDLE).expect("15 s fit")))
        .max_concurrent_bidi_streams(1_u8.into())
        .max_concurrent_uni_streams(0_u8.into())
        .datagram_receive_buffer_size(None)
        .initial_rtt(FIRST_ROUND_TRIP)
        // The messages are few and small, so large packets would not help.
        .mtu_discovery_config(None)
        .stream_receive_window(16_384_u32.into())
        .receive_window(32_768_u32.into());
    transport
}

/// Connection ids without structure. The library's default ids can only be recognised with a key
/// that a restart discards, so clients of the previous process would get no answer.
struct RandomId;

impl quinn::ConnectionIdGenerator for RandomId {
    fn generate_cid(&mut self) -> quinn::ConnectionId {
        quinn::ConnectionId::new(&random::<8>())
    }

    fn cid_len(&self) -> usize {
        8
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

fn verify_signature(
    provider: &CryptoProvider,
    message: &[u8],
    key: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let spki = SubjectPublicKeyInfoDer::from(key.as_ref());
    verify_tls13_signature_with_raw_key(
        message,
        &spki,
        signature,
        &provider.signature_verification_algorithms,
    )
}

const EXPORTER_LABEL: &[u8] = b"hawser data v1";

struct Pinned {
    is_known: Box<dyn Fn(KeyHash) -> bool + Send + Sync>,
    provider: Arc<CryptoProvider>,
}

impl std::fmt::Debug for Pinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pinned").finish_non_exhaustive()
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if intermediates.is_empty() && (self.is_known)(KeyHash::of(end_entity)) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature(&self.provider, message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct AnyKey {
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if intermediates.is_empty() {
            Ok(ClientCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature(&self.provider, message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

//! TLS for the control channel: both sides present a bare public key (RFC 7250) and are known by
//! its hash.
//!
//! There are no certificates: nothing would be in them but the key, and nothing vouches for the key
//! but the invitation. rustls proves that the peer holds the private half; who may come in is
//! decided by the hash, on a client at once, on a hub after the `Hello`.

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

/// QUIC cannot do without a protocol's name (RFC 9001 section 8.1), and everybody on the way can
/// read it: the commonest, so that it says nothing. Which of Hawser's protocols is spoken tells the
/// first message, under encryption.
const ALPN: &[u8] = b"h3";
/// What clients call the hub in the handshake: names play no part, and with an address none is sent
/// (RFC 6066 section 3).
pub const SERVER_NAME: &str = "0.0.0.0";
/// A connection that is silent for so long is gone.
const IDLE: Duration = Duration::from_secs(15);
/// A client keeps its NAT bindings and the hub's patience alive.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// What a round trip is taken for before the first was measured: that of a mobile network. A lost
/// first packet is sent again after three of these, and a few superfluous ones harm nobody. The
/// default of 333 ms (RFC 9002 section 6.2.2) makes a hub's restart last a second longer.
pub const FIRST_ROUND_TRIP: Duration = Duration::from_millis(100);

/// Handshakes that the library holds until they are looked at, which is at once.
const INCOMING: usize = 1_024;
/// Bytes of one of them: no hello is longer.
const INCOMING_BYTES: u64 = 64 << 10;

/// The QUIC configuration of a client or of a host that moves flows: accepts only the hub or peer
/// whose key has the hash `hub`.
///
/// # Errors
/// The TLS library refuses its own defaults.
pub fn client_config(identity: &Identity, hub: KeyHash) -> anyhow::Result<quinn::ClientConfig> {
    client_config_for(identity, move |key| key == hub)
}

/// The QUIC configuration of a device that looks for others: accepts those whose key `is_known`.
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
    // Every connection proves both keys anew.
    tls.resumption = rustls::client::Resumption::disabled();
    let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    let mut transport = transport();
    transport.keep_alive_interval(Some(KEEP_ALIVE));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// The QUIC configuration of a hub, or of a host to which flows lead that others move: accepts any
/// that proves its key.
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

/// An endpoint on that socket, where others come in.
///
/// # Errors
/// The key is of no use, or the socket.
pub fn listening(identity: &Identity, socket: UdpSocket) -> anyhow::Result<quinn::Endpoint> {
    let (config, server) = (hub_endpoint_config(identity), server_config(identity)?);
    let runtime = Arc::new(quinn::TokioRuntime);
    Ok(quinn::Endpoint::new(config, Some(server), socket, runtime)?)
}

/// A hub's endpoint configuration. What it derives from `identity` stays the same over a restart,
/// so that clients of the hub's former life hear at once that it is over (RFC 9000 section 10.3).
#[must_use]
pub fn hub_endpoint_config(identity: &Identity) -> quinn::EndpointConfig {
    let reset = hmac::Key::new(hmac::HMAC_SHA256, &identity.derive("hawser stateless reset v1"));
    let mut config = quinn::EndpointConfig::new(Arc::new(reset));
    config.cid_generator(|| Box::new(RandomId));
    // The first bits of a datagram tell QUIC from data: they must not be greased.
    config.grease_quic_bit(false);
    // A restarted hub has many clients to tell; the default allows 50 in a second.
    config.min_reset_interval(Duration::from_micros(200));
    config
}

/// A client's endpoint configuration.
#[must_use]
pub fn client_endpoint_config() -> quinn::EndpointConfig {
    let mut config = quinn::EndpointConfig::default();
    config.grease_quic_bit(false);
    config
}

/// The key that the peer of an established connection has proven.
///
/// # Errors
/// The peer has shown none: the verifiers do not let that happen.
pub fn peer_key(connection: &quinn::Connection) -> anyhow::Result<KeyHash> {
    let identity = connection.peer_identity().context("the peer has shown no key")?;
    let keys = identity
        .downcast::<Vec<CertificateDer<'static>>>()
        .map_err(|_| anyhow!("not a TLS key"))?;
    Ok(KeyHash::of(keys.first().context("the peer has shown no key")?))
}

/// The data plane's keys that a control connection yields for an epoch of a session (RFC 8446
/// section 7.5).
///
/// # Errors
/// The TLS library cannot export.
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
        // A few small messages: large packets would be of no use.
        .mtu_discovery_config(None)
        .stream_receive_window(16_384_u32.into())
        .receive_window(32_768_u32.into());
    transport
}

/// Connection ids without structure. The library's own default recognises its ids by a key that a
/// restart forgets, and says nothing to those of a former life.
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

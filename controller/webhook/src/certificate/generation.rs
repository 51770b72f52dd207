//! One generation of an own certificate, as the Secret has it: `tls.crt`, `tls.key`, and in `ca.crt` its CA
//! with the CAs of what was served before. Pure but for randomness.
//!
//! ```text
//!   made ──── OVERLAP ───┬────────────────────── 2/3 of its life ──┬───────────── end
//!   all CAs are trusted  │ only its own is trusted                 │ the next one is made
//! ```
//!
//! * The key of a CA signs one certificate and is forgotten, so that it cannot be stolen.
//! * Emptying the Secret revokes what was in it, after the overlap.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use pem::{EncodeConfig, LineEnding, Pem};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::ServerCertVerifier as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{Error, RootCertStore};

use super::{CAS, CHAIN, Certificate, KEY, Unusable, certificates, provider};

/// How long a certificate is valid, and its CA.
const LIFE: SignedDuration = SignedDuration::from_hours(90 * 24);
/// Certificates are valid for this long before they are made, because clocks differ.
const BACKDATED: SignedDuration = SignedDuration::from_hours(1);
/// The CAs of what was served before are trusted for this long: by then every replica serves the new
/// certificate.
pub(super) const OVERLAP: SignedDuration = SignedDuration::from_mins(10);

/// The content of a Secret.
pub(super) type Data = BTreeMap<String, ByteString>;

/// A certificate with the CAs that clients have to trust.
pub(super) struct Generation {
    pub(super) certificate: Certificate,
    /// Its own CA, and those of what was served before.
    cas: Vec<CertificateDer<'static>>,
}

impl Generation {
    /// Makes one for this DNS name, with the CAs of what replicas serve now.
    ///
    /// # Errors
    /// The name is none, or there is no randomness.
    pub(super) fn make(
        dns: &str,
        previous: &[CertificateDer<'static>],
        now: Timestamp,
    ) -> Result<Data, rcgen::Error> {
        let mut ca = CertificateParams::default();
        ca.distinguished_name.push(DnType::CommonName, format!("CA of {dns}"));
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let mut serving = CertificateParams::new([dns.to_owned()])?;
        serving.distinguished_name.push(DnType::CommonName, dns);
        serving.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        serving.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        serving.use_authority_key_identifier_extension = true;
        for params in [&mut ca, &mut serving] {
            let since_1970 = |time: Timestamp| Duration::from_secs(time.as_second().unsigned_abs());
            params.not_before = date_time_ymd(1970, 1, 1) + since_1970(now - BACKDATED);
            params.not_after = date_time_ymd(1970, 1, 1) + since_1970(now + LIFE);
        }
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;
        let key = KeyPair::generate()?;
        let serving = serving.signed_by(&key, &ca)?;
        let cas = [ca.der()].into_iter().chain(previous);
        let parts = [
            (CHAIN, text("CERTIFICATE", serving.der())),
            (KEY, text("PRIVATE KEY", key.serialized_der())),
            (CAS, bundle(cas)),
        ];
        Ok(parts.map(|(name, text)| (name.to_owned(), ByteString(text.into_bytes()))).into())
    }

    /// Reads one, and checks that clients that know its CAs accept it for this DNS name.
    ///
    /// # Errors
    /// Something is missing, damaged or does not fit, or it is not valid now.
    pub(super) fn read(data: &Data, dns: &str, now: Timestamp) -> Result<Self, Unusable> {
        let part = |name| data.get(name).map(|text| text.0.as_slice()).ok_or(Unusable::Missing(name));
        let certificate = Certificate::from_pem(part(CHAIN)?, part(KEY)?)?;
        let cas = certificates(CAS, part(CAS)?)?;
        let generation = Self { certificate, cas };
        let verified = generation.verify(dns, now);
        verified.map_err(|source| Unusable::Verification { name: dns.to_owned(), source })?;
        Ok(generation)
    }

    fn verify(&self, dns: &str, now: Timestamp) -> Result<(), Error> {
        let mut roots = RootCertStore::empty();
        for ca in &self.cas {
            roots.add(ca.clone())?;
        }
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(provider())).build();
        let verifier = verifier.map_err(|error| Error::General(error.to_string()))?;
        let name = ServerName::try_from(dns).map_err(|error| Error::General(error.to_string()))?;
        let (certificate, chain) =
            self.certificate.chain().split_first().ok_or(Error::NoCertificatesPresented)?;
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().unsigned_abs()));
        verifier.verify_server_cert(certificate, chain, &name, &[], now).map(drop)
    }

    /// Returns the CA of its certificate.
    pub(super) fn own_ca(&self) -> &[CertificateDer<'static>] {
        self.cas.get(..1).unwrap_or_default()
    }

    /// Returns whether it is time for the next one.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        let validity = self.certificate.validity;
        now >= validity.from + validity.from.duration_until(validity.until) / 3 * 2
    }

    /// Returns the CAs that clients have to trust now, in PEM.
    pub(super) fn trusted(&self, now: Timestamp) -> ByteString {
        let made = self.certificate.validity.from + BACKDATED;
        let count = if now < made + OVERLAP { self.cas.len() } else { 1 };
        ByteString(bundle(self.cas.iter().take(count)).into_bytes())
    }
}

fn bundle<'a>(cas: impl IntoIterator<Item = &'a CertificateDer<'static>>) -> String {
    cas.into_iter().map(|ca| text("CERTIFICATE", ca)).collect()
}

fn text(label: &str, der: &[u8]) -> String {
    pem::encode_config(&Pem::new(label, der), EncodeConfig::new().set_line_ending(LineEnding::LF))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DNS: &str = "netclaim-webhook.netclaim-system.svc";

    fn start() -> Timestamp {
        "2026-11-23T12:00:00Z".parse().unwrap()
    }

    fn days(days: i64) -> SignedDuration {
        SignedDuration::from_hours(24 * days)
    }

    fn generation(previous: Option<&Generation>, now: Timestamp) -> Generation {
        let previous = previous.map(Generation::own_ca).unwrap_or_default();
        Generation::read(&Generation::make(DNS, previous, now).unwrap(), DNS, now).unwrap()
    }

    fn trusted(generation: &Generation, now: Timestamp) -> Vec<CertificateDer<'static>> {
        certificates(CAS, &generation.trusted(now).0).unwrap()
    }

    #[test]
    fn a_certificate_is_valid_for_its_name_and_life() {
        let data = Generation::make(DNS, &[], start()).unwrap();
        for (at, name, good) in [
            (start(), DNS, true),
            (start() - SignedDuration::from_mins(59), DNS, true),
            (start() + days(89), DNS, true),
            (start(), "netclaim-webhook.default.svc", false),
            (start() - SignedDuration::from_hours(2), DNS, false),
            (start() + days(91), DNS, false),
        ] {
            assert_eq!(Generation::read(&data, name, at).is_ok(), good, "{name} at {at}");
        }
    }

    #[test]
    fn the_next_one_is_made_after_two_thirds_of_its_life() {
        let generation = generation(None, start());
        assert!(!generation.is_due(start() + days(59)));
        assert!(generation.is_due(start() + days(60)));
    }

    #[test]
    fn both_cas_are_trusted_during_the_overlap_and_then_the_new_one() {
        let first = generation(None, start());
        let second = generation(Some(&first), start());
        let third = generation(Some(&second), start());
        let own = |generation: &Generation| generation.own_ca()[0].clone();
        assert_eq!(trusted(&first, start()), [own(&first)]);
        assert_eq!(trusted(&second, start()), [own(&second), own(&first)]);
        assert_eq!(trusted(&third, start()), [own(&third), own(&second)]);
        assert_eq!(trusted(&third, start() + OVERLAP), [own(&third)]);
    }

    #[test]
    fn a_damaged_secret_is_unusable_and_the_error_has_no_key() {
        let good = Generation::make(DNS, &[], start()).unwrap();
        let other = Generation::make(DNS, &[], start()).unwrap();
        let with = |name: &str, text: Option<&ByteString>| {
            let mut data = good.clone();
            match text {
                Some(text) => _ = data.insert(name.to_owned(), text.clone()),
                None => _ = data.remove(name),
            }
            data
        };
        let garbage = ByteString(b"garbage".to_vec());
        for (case, data) in [
            ("empty", Data::new()),
            ("no certificate", with(CHAIN, None)),
            ("no key", with(KEY, None)),
            ("no CA", with(CAS, None)),
            ("another key", with(KEY, other.get(KEY))),
            ("another CA", with(CAS, other.get(CAS))),
            ("another certificate", with(CHAIN, other.get(CHAIN))),
            ("garbage as certificate", with(CHAIN, Some(&garbage))),
            ("garbage as key", with(KEY, Some(&garbage))),
            ("garbage as CA", with(CAS, Some(&garbage))),
            ("a certificate as key", with(KEY, good.get(CHAIN))),
        ] {
            let Err(error) = Generation::read(&data, DNS, start()) else { panic!("{case} is used") };
            let key = String::from_utf8(good[KEY].0.clone()).unwrap();
            let secret = key.lines().nth(1).unwrap();
            assert!(!format!("{error:?}").contains(secret), "{case}");
        }
    }

    #[test]
    fn a_certificate_that_is_printed_shows_no_key() {
        let generation = generation(None, start());
        let printed = format!("{:?}", generation.certificate.key);
        assert!(printed.contains("cert") && !printed.contains("PRIVATE"), "{printed}");
    }
}

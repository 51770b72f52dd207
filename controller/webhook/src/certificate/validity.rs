//! From when to when a certificate is valid: the one thing that is needed of it and that rustls does not
//! tell.

use k8s_openapi::jiff::Timestamp;
use thiserror::Error;
use tokio_rustls::rustls::pki_types::CertificateDer;
use yasna::models::{GeneralizedTime, UTCTime};
use yasna::tags::TAG_UTCTIME;
use yasna::{ASN1Error, ASN1ErrorKind, ASN1Result, BERReader, Tag, parse_der};

/// From when to when a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
}

/// The certificate has no validity that can be read.
#[derive(Debug, Error)]
#[error("it has no period of validity")]
pub(crate) struct NoValidity(#[source] ASN1Error);

impl Validity {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Result<Self, NoValidity> {
        parse_der(certificate, |reader| {
            reader.read_sequence(|reader| {
                let validity = reader.next().read_sequence(|reader| {
                    let _version = reader.read_optional(|reader| {
                        reader.read_tagged(Tag::context(0), |reader| reader.read_i64())
                    })?;
                    let _serial_algorithm_issuer =
                        (reader.next().read_der()?, reader.next().read_der()?, reader.next().read_der()?);
                    let validity = reader.next().read_sequence(|reader| {
                        Ok(Self { from: time(reader.next())?, until: time(reader.next())? })
                    })?;
                    while reader.read_optional(|reader| reader.read_der())?.is_some() {}
                    Ok(validity)
                })?;
                let _algorithm_signature = (reader.next().read_der()?, reader.next().read_der()?);
                Ok(validity)
            })
        })
        .map_err(NoValidity)
    }
}

fn time(reader: BERReader<'_, '_>) -> ASN1Result<Timestamp> {
    let is_short = reader.lookahead_tag()? == TAG_UTCTIME;
    let time = if is_short {
        *UTCTime::datetime(&reader.read_utctime()?)
    } else {
        *GeneralizedTime::datetime(&reader.read_generalized_time()?)
    };
    Timestamp::from_second(time.unix_timestamp()).map_err(|_| ASN1Error::new(ASN1ErrorKind::Invalid))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn the_validity_is_read_in_both_forms_of_time() {
        for (from, until) in [((2026, 11, 23), (2027, 2, 21)), ((1999, 12, 31), (2051, 1, 2))] {
            let mut params = CertificateParams::new(["example".to_owned()]).unwrap();
            params.not_before = date_time_ymd(from.0, from.1, from.2);
            params.not_after = date_time_ymd(until.0, until.1, until.2);
            let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            let validity = Validity::of(certificate.der()).unwrap();
            let day = |(year, month, day): (i32, u8, u8)| format!("{year}-{month:02}-{day:02}T00:00:00Z");
            assert_eq!((validity.from.to_string(), validity.until.to_string()), (day(from), day(until)));
        }
    }

    #[test]
    fn a_text_that_is_not_a_certificate_has_no_validity() {
        for bytes in [&b""[..], b"0\x03\x02\x01\x01", &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff], &[0x30; 4096]] {
            assert!(Validity::of(&CertificateDer::from(bytes)).is_err());
        }
    }
}

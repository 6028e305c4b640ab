//! Limit on connections by client address.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

use parking_lot::Mutex;

/// A range of addresses: `10.0.0.0/8`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// Whether `address` is in the range.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        bits(self.address) == bits(address)
            && mask(self.address, self.prefix) == mask(address, self.prefix)
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let wrong = || NetworkError(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            None => (text, None),
            Some((address, prefix)) => (address, Some(prefix)),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let prefix = match prefix {
            None => bits(address),
            Some(prefix) => prefix.parse().map_err(|_| wrong())?,
        };
        if prefix > bits(address) {
            return Err(wrong());
        }
        Ok(Self { address, prefix })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// The text is not a [`Network`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address; write ADDRESS or ADDRESS/PREFIX, as 10.0.0.0/8")]
pub struct NetworkError(String);

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Clears all but the first `prefix` bits.
fn mask(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    }
}

/// Bits of an IPv6 address that identify a client: networks assign the other bits freely.
const CLIENT_PREFIX_V6: u8 = 64;

/// Counts open connections by client, and rejects those above the limit of one client.
///
/// An entry is removed with its last connection, so there are at most as many entries as connections.
#[derive(Debug)]
pub(crate) struct Addresses {
    limit: usize,
    exempt: Vec<Network>,
    open: Mutex<HashMap<IpAddr, usize>>,
}

impl Addresses {
    pub(crate) fn new(limit: usize, exempt: Vec<Network>) -> Arc<Self> {
        Arc::new(Self {
            limit,
            exempt,
            open: Mutex::default(),
        })
    }

    /// Counts a connection of `address` until the result is dropped. `None` if the client has too many.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Admitted> {
        let address = address.to_canonical();
        let local = address == Ipv4Addr::LOCALHOST || address == Ipv6Addr::LOCALHOST;
        if local || self.exempt.iter().any(|network| network.contains(address)) {
            return Some(Admitted(None));
        }
        let client = match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(_) => mask(address, CLIENT_PREFIX_V6),
        };
        let mut open = self.open.lock();
        let count = open.entry(client).or_default();
        if *count >= self.limit {
            // The limit is above 0, so an entry at the limit has open connections.
            return None;
        }
        *count += 1;
        Some(Admitted(Some((Arc::clone(self), client))))
    }
}

/// A counted connection, unless its address is exempt. Dropping it ends the count.
#[derive(Debug)]
pub(crate) struct Admitted(Option<(Arc<Addresses>, IpAddr)>);

impl Drop for Admitted {
    fn drop(&mut self) {
        let Some((addresses, client)) = self.0.take() else {
            return;
        };
        let mut open = addresses.open.lock();
        if let Some(count) = open.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                open.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn networks_contain_their_addresses_and_no_others() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("0.0.0.0/0", "203.0.113.9", "::1"),
            ("2001:db8::/32", "2001:db8:1::1", "2001:db9::1"),
            ("::/0", "2001:db8::1", "192.0.2.1"),
        ] {
            let network: Network = network.parse().unwrap();
            assert!(network.contains(ip(inside)), "{network}");
            assert!(!network.contains(ip(outside)), "{network}");
        }
        for text in [
            "",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/",
            "host",
            "10.0.0.0/-1",
        ] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }

    #[test]
    fn client_at_its_limit_is_rejected_until_a_connection_ends() {
        let addresses = Addresses::new(2, vec!["198.51.100.0/24".parse().unwrap()]);
        let held: Vec<_> = (0..2)
            .map(|_| addresses.admit(ip("203.0.113.1")).unwrap())
            .collect();
        assert!(addresses.admit(ip("203.0.113.1")).is_none());
        assert!(addresses.admit(ip("::ffff:203.0.113.1")).is_none());
        assert!(addresses.admit(ip("203.0.113.2")).is_some());
        for exempt in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "198.51.100.9"] {
            let open: Vec<_> = (0..9).map(|_| addresses.admit(ip(exempt))).collect();
            assert!(open.iter().all(Option::is_some), "{exempt}");
        }
        drop(held);
        assert!(addresses.admit(ip("203.0.113.1")).is_some());
        assert!(addresses.open.lock().is_empty(), "entries go with the last");
    }

    #[test]
    fn ipv6_network_of_64_bits_is_one_client() {
        let addresses = Addresses::new(1, Vec::new());
        let _held = addresses.admit(ip("2001:db8::1")).unwrap();
        assert!(addresses.admit(ip("2001:db8::ffff:2")).is_none());
        assert!(addresses.admit(ip("2001:db8:0:1::1")).is_some());
    }
}

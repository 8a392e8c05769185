//! Flow switch.

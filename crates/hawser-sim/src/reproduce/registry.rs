//! Every experiment there is.

use super::experiment::Experiment;
use crate::experiments::{all_aps, flow_switch, multifacet, piconet};

/// All experiments, in the order of the papers. An experiment exists for the runner when it is listed here.
pub static EXPERIMENTS: &[&dyn Experiment] = &[
    &multifacet::Constants,
    &multifacet::Searching,
    &multifacet::Placements,
    &multifacet::Reaction,
    &multifacet::Interfered,
    &multifacet::SeveralClients,
    &all_aps::Sweep,
    &all_aps::CongestedUplink,
    &all_aps::MoreAccessPoints,
    &all_aps::Fairness,
    &all_aps::Constants,
    &all_aps::Estimation,
    &all_aps::HiddenAccessPoints,
    &all_aps::CarrierSense,
    &all_aps::RetryLimits,
    &all_aps::TwoChannels,
    &all_aps::ManyUsers,
    &piconet::Sizes,
    &piconet::Joining,
    &piconet::Unequal,
    &piconet::Members,
    &piconet::UnequalConstant,
    &piconet::JoiningConstant,
    &piconet::SpareChannels,
    &piconet::Layers,
    &piconet::Changing,
    &piconet::Testbed,
    &piconet::Transient,
    &piconet::Streaming,
    &piconet::OneSlow,
    &flow_switch::Migrating,
    &flow_switch::TwoNetworks,
    &flow_switch::Outages,
    &flow_switch::TenNetworks,
    &flow_switch::ByPolicy,
    &flow_switch::PacketSize,
];

"""Which fault of the project's catalogue is injected where: the list that test_injections.py checks line by line.

A place is `injection NAME` (injections.py), `kills CLASS` (a class of rounds of the kill campaign), `part NAME` (a part
of the long campaign that is all about it), or `FILE NAME`: a test below tests/.

Guarantees: every fault that the campaign has to cover stands here, and nothing that is not there.
What is *not* injected, and why: of 31 (a sync that lies about *every* file) no witness is left, faults.md says so;
of 71 a peer's absurd clock: no clock is taken over from a peer, a transaction keeps the time of its origin. Of 32 the
alarm is the lag: nothing calls a sync that hangs by its name.
Leaves to others: how anything is injected.
"""

from __future__ import annotations

from typing import Final

from tests.faults.campaign import CLASSES

CLASSES_OF_ROUNDS: Final = CLASSES
WANTED: Final = frozenset(
    [
        *range(1, 48),
        49,
        50,
        52,
        53,
        54,
        58,
        59,
        *range(63, 67),
        *range(70, 81),
        *range(83, 86),
        88,
        89,
        94,
    ]
)

_KILLS: Final = "replicate/door/test_primary_kills.py test_faults_1_to_6_a_live_writer_finishes_what_a_killed_one_left"
_CRASH: Final = "part crash_states"

FAULTS: Final[dict[int, tuple[str, ...]]] = {
    1: ("kills writer", _KILLS),
    2: ("kills writer", _KILLS),
    3: ("kills writer", _KILLS),
    4: ("kills writer", _KILLS),
    5: ("kills writer", "kills mender", _KILLS),
    6: ("kills torn", _KILLS),
    7: ("kills source", "injection killed_servers_are_noticed_at_once"),
    8: ("kills receiver",),
    9: ("kills update", "kills files",
        "replicate/door/test_secondary.py test_faults_9_10_killed_in_the_commit_of_a_batch"),
    10: ("kills update", "kills files",
        "replicate/door/test_secondary.py test_faults_9_10_killed_in_the_commit_of_a_batch"),
    11: ("part roles",),
    12: ("part roles",),
    13: ("part roles", "receiver_server/test_returning_primary_alone.py test_ahead_it_goes_back_and_follows"),
    14: ("injection a_writer_that_is_stopped_in_its_commit",
         "replicate/door/test_primary.py test_fault_14_a_stopped_holder_is_waited_for_and_never_robbed"),
    15: ("injection a_receiver_that_is_stopped", "injection a_source_that_is_stopped"),
    16: ("part roles", "replicate/wire/test_connection.py "
         "test_time_that_we_were_stopped_ourselves_is_not_held_against_the_peer"),
    17: ("injection ended_in_a_drain",
         "replicate/daemon/test_daemon.py test_drain_is_cut_short_at_the_timeout_and_by_a_second_signal"),
    18: ("injection the_kernel_takes_a_daemon_for_its_memory", "injection killed_servers_are_noticed_at_once"),
    19: ("injection no_memory_left_in_a_daemon",
         "replicate/daemon/test_daemon.py test_fault_19_no_memory_is_named_and_no_bug_of_ours"),
    20: ("injection no_descriptors_left_in_the_receiver", "injection no_descriptors_left_in_a_writer"),
    21: ("injection a_fork_in_the_middle_of_a_transaction",
         "replicate/system/test_locks.py test_fault_21_a_forked_child_holds_no_lock_and_can_take_none",),
    22: ("injection a_journal_pool_that_is_removed_under_everybody",
         "replicate/pool/test_journal_pool.py test_replaced_under_a_reader"),
    23: ("injection a_journal_pool_that_is_removed_under_everybody",
         "replicate/pool/test_shared_memory.py test_a_header_that_is_not_ours",
         "replicate/door/recovery/test_recovery.py "
         "test_fault_23_a_copy_does_not_use_the_pool_of_the_original_that_runs"),
    24: ("system/test_network_peers.py test_fault_24_the_first_to_come_waits_for_the_others",
         "system/test_network_peers.py "
         "test_fault_65_a_second_source_of_the_same_name_is_refused_and_the_first_is_untouched",
         "system/test_modes.py test_daemons_follow_the_role"),
    25: ("injection an_update_process_that_is_dead",
         "system/test_street.py test_a_dead_update_process_is_said_and_not_restarted"),
    26: ("part io_errors", "part io_servers", "replicate/door/recovery/test_recovery.py "
         "test_faults_26_27_a_failed_fsync_is_fatal_for_every_process_until_recovery"),
    27: ("part io_errors", "replicate/journal/test_segment.py test_the_first_failed_fsync_is_fatal_and_never_retried"),
    28: ("injection the_primarys_disk_is_full", "part io_errors", "part io_servers",
         "replicate/door/test_primary.py test_fault_28_a_real_full_disk"),
    29: ("injection the_secondarys_disk_is_full", "part io_servers",
         "system/test_operation.py test_a_full_disk",),
    30: ("part io_errors", "replicate/journal/test_segment.py test_short_writes_are_continued"),
    31: ("part crash_states",
         "faults/test_disk_faults.py test_fault_31_a_journal_whose_syncs_lie_is_named_or_completed",),
    32: ("injection a_sync_that_hangs",),
    33: ("part power", _CRASH),
    34: (_CRASH,),
    35: (_CRASH, "kills torn", "kills hole"),
    36: (_CRASH, "part power"),
    37: (_CRASH, "replicate/instance/test_instance.py test_fault_37_a_failed_replacement_leaves_the_old_content"),
    38: ("part damage", _CRASH, "kills torn"),
    39: ("part damage",),
    40: ("part damage",
         "replicate/journal/test_segment.py test_a_frame_of_another_history_under_the_right_number_is_damage",
         "replicate/journal/test_segment.py test_a_frame_that_holds_frames_is_still_torn"),
    41: ("part damage",
         "replicate/door/recovery/test_recovery.py test_fault_41_segments_that_are_gone",
         "replicate/audit/test_show_verify.py test_a_sound_journal_has_no_findings",
         "replicate/journal/test_chain.py test_a_lost_segment_ahead_of_a_reader"),
    42: ("part simulated", "replicate/door/test_pruning.py test_only_whole_segments_below_the_slowest_go",
         "replicate/door/test_pruning.py test_drop_consumer_gives_up_the_slowest_as_far_as_it_takes",
         "replicate/journal/test_chain.py test_a_segment_pruned_under_a_reader_is_read_to_its_end"),
    43: ("replicate/instance/test_instance.py "
         "test_a_copy_beside_its_original_is_refused_and_a_moved_instance_finds_its_regions",
         "replicate/door/test_primary_failures.py "
         "test_a_region_file_swapped_under_an_open_connection_is_refused_before_anything_is_written",
         "source_server/test_process.py test_another_instance_of_the_same_name_is_refused"),
    44: ("replicate/roles/test_source_refusal.py test_a_primary_that_was_restored_is_no_reason_to_go_back",
         "replicate/roles/test_succession.py test_a_primary_that_was_restored_from_a_backup_is_never_superseded",
         "replicate/door/recovery/test_restored_in_place.py test_journal_and_region_of_one_backup_are_gone_on_from",
         "source_server/test_process.py test_a_consumer_that_went_back_is_believed"),
    45: ("injection the_primarys_disk_becomes_read_only", "injection the_secondarys_disk_becomes_read_only",
         "part io_errors", "part io_servers", "system/test_bad_input.py test_a_read_only_region"),
    46: ("injection a_log_that_cannot_grow",
         "replicate/daemon/test_log.py test_a_full_disk_loses_lines_and_says_how_many",
         "replicate/cli/test_standard_output.py test_no_output_changes_an_exit_code",
         "replicate/cli/test_standard_output.py test_a_daemon_without_an_output_serves_and_ends",
         "replicate/cli/test_standard_output.py test_no_file_of_ours_is_what_an_application_prints_to",
         "replicate/cli/test_progress.py test_a_terminal_that_goes_away_ends_the_line_and_not_the_work"),
    47: ("injection checkpoints_while_copies_are_made",),
    49: ("injection a_page_of_the_secondarys_region_that_is_damaged",),
    50: ("faults/test_big_numbers.py test_a_segment_beyond_four_gigabytes",
         "faults/test_big_numbers.py test_numbers_beyond_2_to_the_53_and_63"),
    52: ("injection one_way_only",),
    53: ("injection a_peer_without_power",),
    54: ("injection cut_again_and_again",),
    58: ("injection a_line_that_loses_packets",),
    59: ("injection far_away",),
    63: ("injection a_connection_that_dies_in_a_pause", "injection pauses_that_flap"),
    64: ("injection an_apply_that_takes_longer_than_the_limit",),
    65: ("system/test_network_peers.py "
         "test_fault_65_a_second_source_of_the_same_name_is_refused_and_the_first_is_untouched",
         "system/test_network_peers.py "
         "test_fault_65_a_second_receiver_of_the_same_name_is_refused_and_the_first_keeps_its_place"),
    66: ("system/test_network_peers.py "
         "test_fault_66_a_storm_of_connections_takes_no_descriptors_and_does_not_reach_the_stream",),
    70: ("injection a_clock_that_jumps",),
    71: ("injection a_boot_with_an_absurd_clock",
         "replicate/door/recovery/test_recovery.py test_the_csn_rises_although_the_clock_goes_back"),
    72: ("injection both_sites_stopped_longer_than_the_limit", "injection a_clock_that_runs_ten_times_too_fast",
         "injection a_machine_whose_time_runs_ten_times_too_fast"),
    73: ("injection cut_again_and_again", "injection frames_that_come_twice_are_lost_or_changed",
         "system/test_network_peers.py test_fault_60_doubled_frames_are_dropped"),
    74: ("injection frames_that_come_twice_are_lost_or_changed",
         "system/test_network_peers.py test_fault_60_frames_out_of_order_are_a_gap_and_come_again",
         "receiver_server/test_link.py test_a_gap_names_both_numbers_and_hands_nothing_on"),
    75: ("receiver_server/test_returning_primary_alone.py test_ahead_it_goes_back_and_follows",
         "simulation/test_links.py test_a_secondary_that_is_ahead_is_refused_before_anything_is_sent"),
    76: ("replicate/roles/test_rollback.py test_killed_everywhere_and_repeated",
         "replicate/roles/test_rollback.py test_every_point_of_a_journal_and_again_from_there"),
    77: ("part role_errors", "replicate/lost/test_keep.py test_a_disk_that_is_full_removes_nothing",
         "replicate/lost/test_keep.py test_a_file_that_is_there_is_never_replaced",
         "replicate/lost/test_keep.py test_killed_at_each_step_and_repeated_it_ends_the_same",
         "replicate/lost/test_file.py test_a_file_that_may_not_grow_is_not_there",
         "replicate/lost/test_file.py test_one_of_which_a_byte_is_not_as_it_was_is_none"),
    78: ("replicate/roles/test_rollback.py test_a_third_site_goes_on_from_the_new_primary_without_a_seed",),
    79: ("part roles", "system/test_switchover.py test_back_and_forth_under_load_with_kills"),
    80: ("part roles", "replicate/roles/test_source_refusal.py "
         "test_a_primary_that_was_restored_is_no_reason_to_go_back"),
    83: ("part supplier_worlds",
         "update_process/replay/test_packets.py test_a_lost_packet_and_then_both_arrive",
         "update_process/replay/test_packets.py test_in_any_order_and_twice",
         "update_process/replay/test_packets.py test_a_cut_packet_is_named_and_the_others_go_in",
         "update_process/replay/test_packets.py test_refused",
         "replicate/transfer/packet/test_read.py test_every_cut_is_found_at_once",
         "replicate/transfer/packet/test_format.py test_a_summary_that_makes_no_sense_is_refused"),
    84: ("update_process/replay/test_packets.py test_a_gap_says_what_is_missing_and_how_to_get_it",
         "replicate/transfer/packet/test_export.py test_killed_at_any_step_of_an_export_nothing_is_lost",
         "replicate/transfer/packet/test_epochs.py "
         "test_a_lost_packet_is_exported_again_and_never_below_what_is_confirmed"),
    85: ("injection a_row_of_the_secondary_that_is_not_what_it_was",
         "injection columns_of_the_secondary_in_another_order",
         "system/test_street.py test_a_conflict_stops_the_update_process_with_everything_an_operator_needs",
         "system/test_guards.py test_a_schema_change_on_the_secondary_stops_it_before_the_next_apply"),
    88: ("injection somebody_else_writes_on_the_secondary",
         "system/test_guards.py test_rows_of_other_clients_are_refused_on_both_sides",),
    89: ("system/test_network_faults.py "
         "test_fault_89_a_line_that_swallows_everything_and_a_killed_source_leave_nothing_called_level",
         "receiver_server/test_process.py "
         "test_a_line_that_swallows_everything_is_told_on_both_sides_and_nothing_is_called_level"),
    94: ("replicate/lost/test_keep.py test_refused_with_how_many_which_and_the_command_that_shows_them",
         "replicate/lost/test_keep.py test_force_writes_them_and_the_instance_goes_with_nothing_lost",
         "replicate/lost/test_keep.py "
         "test_of_a_damaged_journal_the_readable_part_is_written_and_the_rest_is_named",
         "replicate/lost/test_keep_received.py test_a_purge_is_refused_until_it_is_applied_or_written",
         "deploy/test_install.py test_a_purge_takes_nothing_that_only_an_instance_has"),
}  # fmt: skip
"""Fault -> where it is injected."""

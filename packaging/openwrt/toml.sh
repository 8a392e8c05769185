# Writes client.toml from /etc/config/hawser. To be read by a shell that has OpenWrt's functions.sh:
# those walk through the file and call config_cb, option_cb and list_cb for what they find.

# hawser_toml: client.toml on standard output. Call config_load before, with these call-backs.
hawser_toml() {
	hawser_end_list
	printf '%s' "$HAWSER_TOP" "$HAWSER_TABLES"
}

HAWSER_TOP=
HAWSER_TABLES=
HAWSER_TYPE=
HAWSER_LIST=
HAWSER_ITEMS=

# A line of the section that is being read: those of the section `hawser` stand before all tables.
hawser_line() {
	if [ "$HAWSER_TYPE" = hawser ]; then
		HAWSER_TOP="$HAWSER_TOP$1
"
	else
		HAWSER_TABLES="$HAWSER_TABLES$1
"
	fi
}

hawser_string() {
	printf '"%s"' "$(printf '%s' "$1" | sed 's/\\/\\\\/g; s/"/\\"/g')"
}

# KEY VALUE: the value as TOML. UCI knows strings alone.
hawser_value() {
	case "$1" in
	enabled | history | kill_switch | mptcp | neighbours | receipts | strict)
		case "$2" in
		1 | on | true | yes | enabled) printf true; return ;;
		0 | off | false | no | disabled) printf false; return ;;
		esac
		;;
	forward)
		case "$2" in
		1 | true) printf true; return ;;
		0 | false) printf false; return ;;
		esac
		;;
	esac
	case "$2" in
	'' | *[!0-9]*) hawser_string "$2" ;;
	*) printf '%s' "$2" ;;
	esac
}

hawser_end_list() {
	[ -n "$HAWSER_LIST" ] && hawser_line "$HAWSER_LIST = [$HAWSER_ITEMS]"
	HAWSER_LIST=
	HAWSER_ITEMS=
}

# The name of a network's table is its device, which comes as an option: the table begins there.
hawser_device() {
	hawser_line "[networks.$(hawser_string "$1")]"
}

config_cb() {
	hawser_end_list
	HAWSER_TYPE="$1"
	case "$1" in
	'' | hawser | network) ;;
	rule | port_forward | layer) hawser_line "[[$1]]" ;;
	gre) hawser_line "[[pool.gre]]" ;;
	*) hawser_line "[$1]" ;;
	esac
}

option_cb() {
	hawser_end_list
	case "$HAWSER_TYPE.$1" in
	hawser.enabled | hawser.mode | hawser.manual) ;;
	network.device) hawser_device "$2" ;;
	*) hawser_line "$1 = $(hawser_value "$1" "$2")" ;;
	esac
}

list_cb() {
	[ "$HAWSER_LIST" = "$1" ] || hawser_end_list
	HAWSER_LIST="$1"
	HAWSER_ITEMS="$HAWSER_ITEMS${HAWSER_ITEMS:+, }$(hawser_value "$1" "$2")"
}

# Writes client.toml from /etc/config/hawser. To be read by a shell that has OpenWrt's functions.sh:
# those walk through the file and call config_cb, option_cb and list_cb for what they find.

# hawser_toml: client.toml on standard output. Call config_load before, with these call-backs.
hawser_toml() {
	hawser_end_section
	printf '%s' "$HAWSER_TOP" "$HAWSER_TABLES"
}

# What is written, options of the section `hawser` before all tables; the section that is being
# read: its type, the name of its table, its lines; and the list that is being read.
HAWSER_TOP=
HAWSER_TABLES=
HAWSER_TYPE=
HAWSER_TABLE=
HAWSER_LINES=
HAWSER_LIST=
HAWSER_ITEMS=

hawser_line() {
	HAWSER_LINES="$HAWSER_LINES$1
"
}

hawser_end_section() {
	hawser_end_list
	case "$HAWSER_TYPE" in
	'') ;;
	hawser) HAWSER_TOP="$HAWSER_TOP$HAWSER_LINES" ;;
	*)
		HAWSER_TABLES="$HAWSER_TABLES$HAWSER_TABLE
$HAWSER_LINES"
		;;
	esac
	HAWSER_TYPE=
	HAWSER_LINES=
}

hawser_string() {
	printf '"%s"' "$(printf '%s' "$1" | sed 's/\\/\\\\/g; s/"/\\"/g')"
}

# KEY VALUE: the value as TOML. UCI knows strings alone.
hawser_value() {
	case "$1" in
	enabled | history | kill_switch | mptcp | neighbours | receipts | share_air | slots | strict)
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

config_cb() {
	hawser_end_section
	HAWSER_TYPE="$1"
	case "$1" in
	'' | hawser) ;;
	network) HAWSER_TABLE="[networks.$(hawser_string "$2")]" ;;
	rule | port_forward | layer) HAWSER_TABLE="[[$1]]" ;;
	gre) HAWSER_TABLE="[[pool.gre]]" ;;
	*) HAWSER_TABLE="[$1]" ;;
	esac
}

option_cb() {
	hawser_end_list
	case "$HAWSER_TYPE.$1" in
	hawser.enabled | hawser.mode | hawser.manual) ;;
	# Names of sections know fewer letters than those of interfaces.
	network.device) HAWSER_TABLE="[networks.$(hawser_string "$2")]" ;;
	*) hawser_line "$1 = $(hawser_value "$1" "$2")" ;;
	esac
}

list_cb() {
	[ "$HAWSER_LIST" = "$1" ] || hawser_end_list
	HAWSER_LIST="$1"
	HAWSER_ITEMS="$HAWSER_ITEMS${HAWSER_ITEMS:+, }$(hawser_value "$1" "$2")"
}

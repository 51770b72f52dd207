// Command links shows and changes what is in the network namespace it is started in.
//
//	links show                         everything, as JSON
//	links add KIND NAME [PEER]         a link that is up; of kind veth with its peer
//	links del NAME
//	links give NAME NETNS              moves it to another namespace
//	links mtu NAME BYTES
//	links flush NAME                   takes its addresses away
//	links unroute                      takes all routes of the main table away
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"sort"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

func main() {
	log.SetFlags(0)
	args := os.Args[1:]
	switch args[0] {
	case "show":
		out := json.NewEncoder(os.Stdout)
		out.SetEscapeHTML(false)
		check(out.Encode(show()))
	case "add":
		add(args[1], args[2:])
	case "del":
		check(netlink.LinkDel(find(args[1])))
	case "give":
		netns, err := os.Open(args[2])
		check(err)
		check(netlink.LinkSetNsFd(find(args[1]), int(netns.Fd())))
	case "mtu":
		bytes, err := strconv.Atoi(args[2])
		check(err)
		check(netlink.LinkSetMTU(find(args[1]), bytes))
	case "flush":
		addrs, err := netlink.AddrList(find(args[1]), netlink.FAMILY_ALL)
		check(err)
		for _, addr := range addrs {
			check(netlink.AddrDel(find(args[1]), &addr))
		}
	case "unroute":
		routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
		check(err)
		for _, route := range routes {
			check(netlink.RouteDel(&route))
		}
	default:
		log.Fatalf("links: unknown command %q", args[0])
	}
}

func add(kind string, names []string) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = names[0]
	var link netlink.Link = &netlink.GenericLink{LinkAttrs: attrs, LinkType: kind}
	switch kind {
	case "veth":
		link = &netlink.Veth{LinkAttrs: attrs, PeerName: names[1]}
	case "bridge":
		// Otherwise it is that of one of its ports, whichever is the lowest.
		attrs.HardwareAddr = net.HardwareAddr{2, 0, 0, 0, 0, 1}
		link = &netlink.Bridge{LinkAttrs: attrs}
	case "vlan-bridge":
		filtering := true
		link = &netlink.Bridge{LinkAttrs: attrs, VlanFiltering: &filtering}
	case "bond":
		link = netlink.NewLinkBond(attrs)
	case "vrf":
		link = &netlink.Vrf{LinkAttrs: attrs, Table: 4000}
	case "vlan":
		attrs.ParentIndex = find(names[1]).Attrs().Index
		link = &netlink.Vlan{LinkAttrs: attrs, VlanId: 4000}
		names = names[:1]
	case "ipvlan":
		attrs.ParentIndex = find(names[1]).Attrs().Index
		link = &netlink.IPVlan{LinkAttrs: attrs}
		names = names[:1]
	case "macvlan":
		attrs.ParentIndex = find(names[1]).Attrs().Index
		link = &netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE}
		names = names[:1]
	case "tap":
		link = &netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP}
	}
	check(netlink.LinkAdd(link))
	for _, name := range names {
		check(netlink.LinkSetUp(find(name)))
	}
}

func find(name string) netlink.Link {
	link, err := netlink.LinkByName(name)
	check(err)
	return link
}

func show() map[string]interface{} {
	links := all(netlink.LinkList)
	names := map[int]string{}
	for _, link := range links {
		names[link.Attrs().Index] = link.Attrs().Name
	}
	shown, addrs, qdiscs := map[string]interface{}{}, []string{}, []string{}
	for _, link := range links {
		attrs := link.Attrs()
		shown[attrs.Name] = map[string]interface{}{
			"kind":        link.Type(),
			"mac":         attrs.HardwareAddr.String(),
			"mtu":         attrs.MTU,
			"up":          strings.Contains(attrs.Flags.String(), "up"),
			"promiscuous": attrs.Promisc,
			"allmulti":    attrs.Allmulti,
			"queue":       attrs.TxQLen,
			"master":      names[attrs.MasterIndex],
			"alias":       attrs.Alias,
			"own":         own(link),
		}
		for _, addr := range all(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) }) {
			if !addr.IP.IsLinkLocalUnicast() {
				addrs = append(addrs, fmt.Sprintf("%s %s scope %d", attrs.Name, addr.IPNet, addr.Scope))
			}
		}
		for _, queue := range all(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(link) }) {
			line := attrs.Name + " " + queue.Type()
			if tbf, ok := queue.(*netlink.Tbf); ok {
				line += fmt.Sprint(" rate ", tbf.Rate, " limit ", tbf.Limit, " buffer ", tbf.Buffer)
			}
			qdiscs = append(qdiscs, line)
		}
	}
	routes := []string{}
	every := func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	}
	for _, route := range all(every) {
		dst := route.Dst
		if dst != nil && (dst.IP.IsLinkLocalUnicast() || dst.IP.IsMulticast()) {
			continue
		}
		// IPv6 addresses get theirs when the kernel has made sure that nobody else has them, at some time.
		if route.Family == netlink.FAMILY_V6 && route.Table == localTable {
			continue
		}
		routes = append(routes, fmt.Sprintf("%v via %v dev %s src %v table %d scope %d priority %d",
			dst, route.Gw, names[route.LinkIndex], route.Src, route.Table, route.Scope, route.Priority))
	}
	rules := []string{}
	for _, rule := range all(func() ([]netlink.Rule, error) { return netlink.RuleList(netlink.FAMILY_ALL) }) {
		rules = append(rules, fmt.Sprintf("%d: from %v to %v table %d", rule.Priority, rule.Src, rule.Dst, rule.Table))
	}
	for _, list := range [][]string{addrs, qdiscs, routes, rules} {
		sort.Strings(list)
	}
	return map[string]interface{}{"links": shown, "addresses": addrs, "routes": routes, "rules": rules, "queues": qdiscs}
}

// The kernel's own routing table (RT_TABLE_LOCAL).
const localTable = 255

// all asks again while the kernel says that something changed meanwhile, be it in another namespace.
func all[T any](list func() ([]T, error)) []T {
	for {
		items, err := list()
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			continue
		}
		check(err)
		return items
	}
}

// own is what links of one kind only have.
func own(link netlink.Link) string {
	switch link := link.(type) {
	case *netlink.Macvlan:
		return fmt.Sprint("mode ", link.Mode)
	case *netlink.IPVlan:
		return fmt.Sprint("mode ", link.Mode)
	case *netlink.Vlan:
		return fmt.Sprint("id ", link.VlanId)
	case *netlink.Vrf:
		return fmt.Sprint("table ", link.Table)
	case *netlink.Bond:
		return fmt.Sprint("mode ", link.Mode)
	case *netlink.Tuntap:
		return fmt.Sprint("mode ", link.Mode, " owner ", link.Owner, " group ", link.Group)
	case *netlink.Bridge:
		return fmt.Sprint("vlan filtering ", link.VlanFiltering != nil && *link.VlanFiltering)
	}
	return ""
}

func check(err error) {
	if err != nil {
		log.Fatal("links: ", err)
	}
}

//! Values of the chart, for the scenarios that render it. Each value of values.yaml is in one of these: the
//! test `reference` walks through them.

/// Values that are not the default, and what has to be in the objects for it.
pub const VALUES: &[(&str, &str)] = &[
    (
        "agent.image.digest=sha256:0000000000000000000000000000000000000000000000000000000000000001",
        "image: localhost/netclaim-agent@sha256:00",
    ),
    (
        "controller.image.digest=sha256:0000000000000000000000000000000000000000000000000000000000000001",
        "image: localhost/netclaim-controller@sha256:00",
    ),
    ("image.registry=example.com:5000/team/", "image: example.com:5000/team/netclaim-agent:"),
    ("agent.image.repository=mirror/agent,image.tag=v1", "image: localhost/mirror/agent:v1"),
    ("controller.image.repository=mirror/controller,image.tag=v1", "image: localhost/mirror/controller:v1"),
    ("image.pullPolicy=Always", "imagePullPolicy: Always"),
    ("imagePullSecrets[0].name=mine", "name: mine"),
    ("agent.kubeletDir=/var/lib/k0s/kubelet", "path: /var/lib/k0s/kubelet/plugins_registry"),
    ("agent.cniBinDir=/usr/lib/cni", "{name: NETCLAIM_CNI_BIN_DIR, value: \"/usr/lib/cni\"}"),
    ("agent.hostMounts=true", "SYS_PTRACE"),
    ("agent.cniDaemons={portmap,firewall}", "{name: NETCLAIM_CNI_DAEMONS, value: \"portmap,firewall\"}"),
    ("agent.metricsAddress=127.0.0.1:9177", "value: \"127.0.0.1:9177\""),
    ("agent.logJSON=true", "NETCLAIM_LOG_JSON"),
    (
        "agent.clusterCIDRs={10.244.0.0/16,fd00:244::/56}",
        "{name: NETCLAIM_CLUSTER_CIDRS, value: \"10.244.0.0/16,fd00:244::/56\"}",
    ),
    ("agent.extraEnv[0].name=NETCLAIM_GC_PERIOD,agent.extraEnv[0].value=60s", "NETCLAIM_GC_PERIOD"),
    (
        "agent.networkStatusAnnotation=true",
        "key in [\"netclaim.dev/retry\",\"k8s.v1.cni.cncf.io/network-status\"]",
    ),
    (
        "agent.tracing.endpoint=http://10.0.0.9:4317",
        "{name: OTEL_EXPORTER_OTLP_ENDPOINT, value: \"http://10.0.0.9:4317\"}",
    ),
    (
        "agent.tracing.endpoint=https://otel.example.com:4317,agent.tracing.samplingRatio=0.05",
        "{name: OTEL_TRACES_SAMPLER_ARG, value: \"0.05\"}",
    ),
    (
        "agent.tracing.endpoint=https://otel.example.com:4317,agent.tracing.caConfigMap=otel-ca",
        "{name: tracing-ca, configMap: {name: otel-ca}}",
    ),
    ("agent.allowCapture=true", "{name: NETCLAIM_ALLOW_CAPTURE, value: \"true\"}"),
    ("agent.podAnnotations.a=b", "a: b"),
    ("agent.podLabels.team=net", "team: net"),
    (
        "plugins.image=example.com/cni:1,plugins.path=bin",
        "value: \"/usr/libexec/netclaim/plugins/bin:/opt/cni/bin\"",
    ),
    (
        "plugins.image=example.com/cni:1,plugins.mount=initContainer,plugins.resources.limits.cpu=1",
        "args: [/., /netclaim-plugins]",
    ),
    (
        "plugins.image=x,plugins.path=/opt/bin/,plugins.mount=initContainer,plugins.copyCommand={cp,-r}",
        "args: [/opt/bin/., /netclaim-plugins]",
    ),
    ("controller.replicas=2,controller.podDisruptionBudget.enabled=true", "kind: PodDisruptionBudget"),
    ("controller.networkPolicy.enabled=true", "kind: NetworkPolicy"),
    ("controller.replicas=2", "topologyKey: kubernetes.io/hostname"),
    ("controller.metricsAddress=[::]:9999", "{name: metrics, containerPort: 9999}"),
    ("controller.autoscalerNamespace=kube-public", "namespace: kube-public"),
    (
        "controller.autoscalerNamespace=kube-public",
        "{name: NETCLAIM_AUTOSCALER_NAMESPACE, value: \"kube-public\"}",
    ),
    ("agent.resources.limits.memory=3Gi", "memory: 3Gi"),
    ("agent.priorityClassName=mine", "priorityClassName: mine"),
    ("agent.nodeSelector.net=fast", "net: fast"),
    ("agent.tolerations[0].key=net,agent.tolerations[0].operator=Exists", "key: net"),
    (
        "agent.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey=rack",
        "topologyKey: rack",
    ),
    ("agent.logLevel=debug", "{name: NETCLAIM_LOG, value: \"debug\"}"),
    ("agent.stateDir=/srv/netclaim", "{name: NETCLAIM_STATE_DIR, value: \"/srv/netclaim\"}"),
    (
        "agent.stateDir=/srv/netclaim",
        "{name: state, hostPath: {path: /srv/netclaim, type: DirectoryOrCreate}}",
    ),
    ("agent.runDir=/run/other", "{name: NETCLAIM_CNI_SOCKETS, value: \"/run/other/cni\"}"),
    (
        "agent.nriSocket=/run/k3s/nri/nri.sock",
        "{name: NETCLAIM_NRI_SOCKET, value: \"/run/k3s/nri/nri.sock\"}",
    ),
    ("agent.nriSocket=/run/k3s/nri/nri.sock", "{name: nri, mountPath: /run/k3s/nri}"),
    ("agent.cdiDir=/var/cdi/dynamic", "{name: NETCLAIM_CDI_DIR, value: \"/var/cdi/dynamic\"}"),
    ("agent.cniStateDir=/srv/cni", "{name: cni-lib, hostPath: {path: /srv/cni, type: DirectoryOrCreate}}"),
    ("agent.cniStateDir=/srv/cni", "{name: cni-lib, mountPath: /var/lib/cni}"),
    ("agent.seLinuxOptions.type=super_t,agent.seLinuxOptions.level=s0:c1", "level: s0:c1"),
    ("agent.seLinuxOptions.type=super_t", "type: super_t"),
    ("agent.maxSurge=100", "rollingUpdate: {maxSurge: 100, maxUnavailable: 0}"),
    (
        "agent.extraVolumes[0].name=ovs,agent.extraVolumes[0].hostPath.path=/run/openvswitch,\
         agent.extraVolumeMounts[0].name=ovs,agent.extraVolumeMounts[0].mountPath=/run/ovs",
        "mountPath: /run/ovs",
    ),
    ("commonLabels.team=net", "team: net"),
    ("agent.serviceAccount.annotations.role=net", "role: net"),
    ("agent.revisionHistoryLimit=3", "revisionHistoryLimit: 3"),
    ("agent.terminationGracePeriodSeconds=60", "terminationGracePeriodSeconds: 60"),
    ("controller.serviceAccount.annotations.role=net", "role: net"),
    ("controller.revisionHistoryLimit=3", "revisionHistoryLimit: 3"),
    ("controller.terminationGracePeriodSeconds=60", "terminationGracePeriodSeconds: 60"),
    ("plugins.image=x,plugins.pullPolicy=Always", "pullPolicy: Always"),
    ("controller.hostNetwork=true", "dnsPolicy: ClusterFirstWithHostNet"),
    ("controller.logJSON=true", "NETCLAIM_LOG_JSON"),
    ("controller.extraEnv[0].name=NETCLAIM_AUTOSCALER_PERIOD,controller.extraEnv[0].value=9s", "value: 9s"),
    ("controller.resources.limits.cpu=2", "cpu: 2"),
    ("controller.priorityClassName=mine", "priorityClassName: mine"),
    ("controller.nodeSelector.net=fast", "net: fast"),
    (
        "controller.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey=rack",
        "topologyKey: rack",
    ),
    (
        "controller.topologySpreadConstraints[0].topologyKey=zone,controller.topologySpreadConstraints[0].maxSkew=1,\
         controller.topologySpreadConstraints[0].whenUnsatisfiable=ScheduleAnyway",
        "topologyKey: zone",
    ),
    ("controller.podAnnotations.a=b", "a: b"),
    ("controller.podLabels.team=net", "team: net"),
    (
        "controller.replicas=3,controller.podDisruptionBudget.enabled=true,controller.podDisruptionBudget.minAvailable=2",
        "minAvailable: 2",
    ),
    (
        "controller.networkPolicy.enabled=true,controller.networkPolicy.from[0].ipBlock.cidr=10.0.0.0/8",
        "cidr: 10.0.0.0/8",
    ),
    ("enabled=true", "kind: DaemonSet"),
    ("controller.logLevel=debug", "{name: NETCLAIM_LOG, value: \"debug\"}"),
    ("controller.tolerations[0].operator=Exists", "- operator: Exists"),
    ("rbac.everybodyReadsClaimNetworks=true", "name: system:authenticated"),
    ("rbac.everybodyReadsClaimNetworks=true", "resources: [deviceclasses]"),
    ("rbac.aggregate=true", "rbac.authorization.k8s.io/aggregate-to-view: \"true\""),
    ("crds.enabled=true,crds.keep=true", "helm.sh/resource-policy: keep"),
    ("rbac.kubeletsReadClaims=true", "name: system:nodes"),
    ("webhook.enabled=true", "- name: parameters.netclaim.dev"),
    ("webhook.enabled=true,webhook.address=[::]:9444", "{name: webhook, containerPort: 9444}"),
    ("webhook.enabled=true,webhook.namespaceSelector.matchLabels.team=net", "team: net"),
    ("defaultNetworks.enabled=true", "kind: MutatingAdmissionPolicy"),
    (
        "defaultNetworks.enabled=true,defaultNetworks.exceptNamespaces={kube-system,infra}",
        "{name: NETCLAIM_DEFAULT_NETWORKS_EXCEPT, value: \"kube-system,infra,netclaim-system\"}",
    ),
    ("hotAttach.enabled=true", "name: netclaim-attachment-claims"),
    ("primary.enabled=true", "{name: NETCLAIM_PRIMARY, value: \"true\"}"),
    ("primary.enabled=true", "kind: RuntimeClass"),
    ("primary.enabled=true,primary.runtimeClassName=own", "handler: \"own\""),
    ("primary.enabled=true,primary.nodeSelector.eth0=claimed", "eth0: claimed"),
    ("gate.allContainers=Labelled", "matchLabels: {netclaim.dev/gate: all}"),
    ("gate.allContainers=Always", "name: netclaim-gate"),
    (
        "webhook.enabled=true,controller.networkPolicy.enabled=true",
        "ports: [{port: metrics}, {port: webhook}]",
    ),
];

/// What Prometheus' operator would find.
pub const MONITORING: &str = "monitoring.podMonitors.enabled=true,monitoring.podMonitors.labels.release=prometheus,\
                          monitoring.alerts.enabled=true,monitoring.alerts.labels.role=alerts,\
                          monitoring.dashboard.enabled=true,monitoring.dashboard.labels.folder=net,\
                          agent.metricsAddress=0.0.0.0:9999,docsURL=https://docs.example.com/";

/// Has cert-manager make the webhook's certificate.
pub const CERT_MANAGER: &str = "webhook.enabled=true,webhook.certManager.enabled=true,webhook.certManager.issuerRef.kind=ClusterIssuer,\
     webhook.certManager.issuerRef.name=mine";
